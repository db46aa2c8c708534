#!/usr/bin/env python3
"""Reads everything of a Chatwoot account over its API and prints the lines that `tidegate desk import` takes.

    export CHATWOOT_URL=https://chat.example.org
    export CHATWOOT_TOKEN=…        # of an administrator: profile settings, access token
    python3 from_chatwoot.py --account 1 > chatwoot.jsonl
    tidegate desk import chatwoot.jsonl

Standard library only. The ids it makes are always the same, so that it may be run again, and imported again, until the
day you switch. docs/coming-from-chatwoot.md has the table of fields.
"""
import argparse
import base64
import json
import os
import re
import sys
import urllib.parse
import urllib.request
from datetime import datetime, timezone

INCOMING, OUTGOING, ACTIVITY, TEMPLATE = range(4)  # message_type
STATUSES = {"open": "open", "resolved": "resolved", "pending": "pending", "snoozed": "pending"}
PRIORITIES = {"urgent": "urgent", "high": "high", "medium": "normal", "low": "low", None: "normal"}
LARGEST_FILE = 64 << 20
TRUSTS_IDENTIFIERS = False


class Chatwoot:
    def __init__(self, url, token, account):
        self.base = f"{url.rstrip('/')}/api/v1/accounts/{account}"
        self.token = token

    def get(self, path, **query):
        url = f"{self.base}/{path}"
        if query:
            url += "?" + urllib.parse.urlencode(query)
        request = urllib.request.Request(url, headers={"api_access_token": self.token})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def pages(self, path, **query):
        """The items of all pages; contacts and conversations wrap them differently."""
        page = 1
        while True:
            answer = self.get(path, **query, page=page)
            items = answer.get("data", answer)["payload"]
            if not items:
                return
            yield from items
            page += 1

    def messages(self, conversation):
        """All messages, oldest first; an answer has the last ones before an id."""
        found = {}
        query = {}
        while True:
            items = self.get(f"conversations/{conversation}/messages", **query)["payload"]
            items = [item for item in items if item["id"] not in found]
            if not items:
                return [found[id] for id in sorted(found)]
            found.update((item["id"], item) for item in items)
            query = {"before": min(found)}


def time(value):
    """Chatwoot has seconds, sometimes with a fraction, and sometimes text."""
    if value in (None, "", 0):
        return None
    if isinstance(value, str) and not re.fullmatch(r"[0-9.]+", value):
        at = datetime.fromisoformat(value.replace("Z", "+00:00"))
    else:
        at = datetime.fromtimestamp(float(value), timezone.utc)
    return at.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def one_line(text, most):
    text = " ".join((text or "").split())
    return "".join(c for c in text if c.isprintable())[:most] or None


def words(labels):
    """Tags here are letters, digits, -, _, . and spaces."""
    found = []
    for label in labels or []:
        word = re.sub(r"[^\w.\- ]", "-", label).strip()[:40]
        if word and word not in found:
            found.append(word)
    return found[:20]


def visitor_id(contact):
    # An identifier is the id that your site gives its users. Only where Chatwoot asked for its HMAC is it proven.
    identifier = contact.get("identifier")
    if TRUSTS_IDENTIFIERS and identifier and not re.search(r"[\s:{}#]", identifier) and len(identifier.encode()) <= 126:
        return f"v~{identifier}"
    return f"chatwoot-contact-{contact['id']}"


def attributes(contact):
    fields = {"chatwoot_id": contact["id"]}
    if contact.get("identifier"):
        fields["chatwoot_identifier"] = str(contact["identifier"])[:500]
    if contact.get("phone_number"):
        fields["phone"] = contact["phone_number"]
    more = {**(contact.get("additional_attributes") or {}), **(contact.get("custom_attributes") or {})}
    for name, value in more.items():
        if isinstance(value, (dict, list)):
            value = json.dumps(value)
        if value not in (None, "") and len(fields) < 50:
            fields[name[:64]] = value if not isinstance(value, str) else value[:500]
    return fields


def contact_line(contact):
    created = time(contact.get("created_at")) or time(contact.get("last_activity_at")) or "1970-01-01T00:00:00.000Z"
    return {
        "kind": "visitor",
        "id": visitor_id(contact),
        "name": one_line(contact.get("name"), 100),
        "email": contact.get("email") or None,
        "attributes": attributes(contact),
        "created_at": created,
        "seen_at": time(contact.get("last_activity_at")) or created,
    }


def agent_line(agent):
    return {
        "kind": "agent",
        "id": f"chatwoot-agent-{agent['id']}",
        "email": agent["email"],
        "name": one_line(agent.get("available_name") or agent.get("name"), 100) or agent["email"],
        "role": "supervisor" if agent.get("role") == "administrator" else "agent",
        "created_at": "1970-01-01T00:00:00.000Z",  # Chatwoot's answer has none
    }


def canned_line(canned):
    return {
        "kind": "canned",
        "id": f"chatwoot-canned-{canned['id']}",
        "short_code": re.sub(r"[^\w-]", "-", canned["short_code"])[:50],
        # The placeholders that both have.
        "content": canned["content"].replace("{{contact.name}}", "{{visitor.name}}")[:4000],
        "created_at": time(canned.get("created_at")) or "1970-01-01T00:00:00.000Z",
    }


def conversation_line(conversation, visitor, agents, teams, messages):
    meta = conversation.get("meta") or {}
    assignee = (meta.get("assignee") or {}).get("id")
    team = (meta.get("team") or {}).get("id")
    status = STATUSES[conversation["status"]]
    line = {
        "kind": "conversation",
        "id": f"chatwoot-{conversation['account_id']}-{conversation['id']}",
        "visitor_id": visitor,
        "status": status,
        "priority": PRIORITIES.get(conversation.get("priority"), "normal"),
        "tags": words(conversation.get("labels")),
        "assignee": f"chatwoot-agent-{assignee}" if assignee in agents else None,
        "team_id": f"chatwoot-team-{team}" if team in teams else None,
        "created_at": time(conversation["created_at"]),
        "wakes_at": time(conversation.get("snoozed_until")) if status == "pending" else None,
        "first_reply_at": time(conversation.get("first_reply_created_at")),
    }
    if status == "resolved":
        line["resolved_at"] = time(conversation.get("last_activity_at")) or line["created_at"]
    for message in messages:  # the answer to the survey is in the message that asked
        survey = (message.get("content_attributes") or {}).get("submitted_values")
        survey = survey.get("csat_survey_response") if isinstance(survey, dict) else None
        if survey and survey.get("rating"):
            line["rating"] = survey["rating"]
            line["rating_comment"] = (survey.get("feedback_message") or "")[:1000] or None
    return line


def message_line(conversation, visitor, message, agents):
    kind = message["message_type"]
    sender = message.get("sender") or {}
    content = message.get("content") or ""
    line = {
        "kind": "message",
        "id": f"chatwoot-message-{message['id']}",
        "conversation_id": conversation,
        "created_at": time(message["created_at"]),
        "deleted": bool((message.get("content_attributes") or {}).get("deleted")),
    }
    if kind == INCOMING:
        line.update(sender_role="user", sender={"id": visitor, "name": one_line(sender.get("name"), 100)})
    elif kind == OUTGOING and message.get("sender_type", sender.get("type")) in ("User", "user", None):
        id = f"chatwoot-agent-{sender['id']}" if sender.get("id") in agents else None
        line.update(sender_role="admin", sender={"id": id, "name": one_line(sender.get("name"), 100)})
        if message.get("private"):
            line["type"] = "note"
    elif kind == OUTGOING or kind == TEMPLATE:
        line.update(sender_role="bot", sender={"id": None, "name": one_line(sender.get("name"), 100)})
        if message.get("private"):
            line["type"] = "note"
    else:  # "Anna resolved the conversation": for agents, as it is there
        line.update(sender_role="system", type="note")
    line["content"] = content.replace("\0", "")[:100_000]
    return line


def file_lines(conversation, owner, message, with_files):
    """Files of a message; those that are not fetched are links in its text."""
    lines, links = [], []
    for attachment in message.get("attachments") or []:
        url = attachment.get("data_url")
        if not url:
            continue
        if not with_files or (attachment.get("file_size") or 0) > LARGEST_FILE:
            links.append(url)
            continue
        name = urllib.parse.unquote(urllib.parse.urlsplit(url).path.rsplit("/", 1)[-1]) or "file"
        with urllib.request.urlopen(url, timeout=120) as answer:
            data = answer.read(LARGEST_FILE + 1)
        lines.append({
            "kind": "file",
            "id": f"chatwoot-file-{attachment['id']}",
            "name": name[:120],
            "owner": owner,
            "conversation_id": conversation,
            "created_at": time(message["created_at"]),
            "data": base64.b64encode(data).decode(),
        })
    return lines, links


def convert(chatwoot, with_files, put):
    put({"kind": "header", "format": "tidegate-desk", "version": 1})
    teams = set()
    for team in chatwoot.get("teams"):
        teams.add(team["id"])
        put({"kind": "team", "id": f"chatwoot-team-{team['id']}", "name": one_line(team["name"], 100),
             "created_at": "1970-01-01T00:00:00.000Z"})
    agents = set()
    for agent in chatwoot.get("agents"):
        agents.add(agent["id"])
        put(agent_line(agent))
    codes = set()
    for canned in chatwoot.get("canned_responses"):
        line = canned_line(canned)
        if line["short_code"] not in codes:
            codes.add(line["short_code"])
            put(line)
    visitors = {}
    for contact in chatwoot.pages("contacts"):
        if contact["id"] not in visitors:
            visitors[contact["id"]] = visitor_id(contact)
            put(contact_line(contact))
    for status in STATUSES:
        for conversation in chatwoot.pages("conversations", status=status):
            sender = conversation["meta"]["sender"]
            if sender["id"] not in visitors:  # a contact that came meanwhile
                visitors[sender["id"]] = visitor_id(sender)
                put(contact_line(sender))
            visitor = visitors[sender["id"]]
            messages = chatwoot.messages(conversation["id"])
            line = conversation_line(conversation, visitor, agents, teams, messages)
            put(line)
            for message in messages:
                owner = visitor if message["message_type"] == INCOMING else "chatwoot"
                files, links = file_lines(line["id"], owner, message, with_files)
                written = message_line(line["id"], visitor, message, agents)
                written["content"] = "\n".join(filter(None, [written["content"], *links]))
                put(written)
                for file in files:
                    put(file)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--account", default="1", help="id of the account, as in the address of its pages")
    options.add_argument("--without-files", action="store_true", help="leave files where they are, as links")
    options.add_argument("--trust-identifiers", action="store_true",
                         help="contacts with an identifier are verified users; only if identity validation is enforced there")
    given = options.parse_args()
    global TRUSTS_IDENTIFIERS
    TRUSTS_IDENTIFIERS = given.trust_identifiers
    chatwoot = Chatwoot(os.environ["CHATWOOT_URL"], os.environ["CHATWOOT_TOKEN"], given.account)
    counts = {}

    def put(line):
        counts[line["kind"]] = counts.get(line["kind"], 0) + 1
        line = {name: value for name, value in line.items() if value is not None}
        print(json.dumps(line, ensure_ascii=False))

    convert(chatwoot, not given.without_files, put)
    print(", ".join(f"{count} × {kind}" for kind, count in counts.items()), file=sys.stderr)


if __name__ == "__main__":
    main()
