"""A client in Python, made from openapi.json by openapi-python-client, plays a story with the real program:
`python story.py FOLDER URL ADMIN_TOKEN`, where the package `tidegate_client` is in FOLDER. It ends with the
line "done"."""

import sys
import time
from datetime import datetime, timezone

FOLDER, URL, TOKEN = sys.argv[1:4]
sys.path.insert(0, FOLDER)

from tidegate_client import AuthenticatedClient, Client  # noqa: E402
from tidegate_client.api.jobs import (  # noqa: E402
    claim_leases,
    complete_job,
    dispatch_job,
    dispatch_many,
    fail_job,
    get_job,
    list_dead_letters,
    list_jobs,
    replay_job,
)
from tidegate_client.api.room import (  # noqa: E402
    complete_session,
    create_queue,
    enqueue,
    get_own_position,
    get_queue_now,
    list_queues,
    start_session,
)
from tidegate_client.models import (  # noqa: E402
    AckOutcome,
    BulkDispatchRequest,
    ClaimRequest,
    CompleteRequest,
    EndReason,
    ErrorBody,
    FailRequest,
    JobError,
    JobState,
    NewJob,
    NewQueue,
    NewRate,
    PositionStatus,
    QueuePosition,
    RetryPolicy,
    Session,
    SessionStatus,
)

operator = AuthenticatedClient(base_url=URL, token=TOKEN)
anybody = Client(base_url=URL)


def bearer(token):
    return AuthenticatedClient(base_url=URL, token=token)


def equal(got, expected, what):
    assert got == expected, f"{what}: {got!r} instead of {expected!r}"


def code(answer):
    assert isinstance(answer, ErrorBody), answer
    return answer.error.code


def room():
    new = NewQueue(id="fair", max_active=1, admission=NewRate(count=100, per_seconds=1))
    queue = create_queue.sync(client=operator, body=new)
    equal((queue.id, queue.max_active), ("fair", 1), "the queue")
    assert isinstance(queue.created_at, datetime) and queue.created_at.tzinfo == timezone.utc, queue.created_at
    equal(code(create_queue.sync(client=operator, body=NewQueue(id="fair"))), "QUEUE_EXISTS", "a name that is taken")

    # Everything in the body may be left out, and the body, too.
    held = enqueue.sync("fair", client=anybody)
    assert isinstance(held, QueuePosition), held
    visitor = bearer(held.token)
    position = held
    while position.status is PositionStatus.WAITING:
        time.sleep(min(position.next_poll_ms / 1000, 0.2))
        answer = get_own_position.sync("fair", client=visitor)
        position = answer if isinstance(answer, QueuePosition) else position
    equal(position.status, PositionStatus.ADMITTED, "the position")
    session = start_session.sync("fair", client=visitor)
    assert isinstance(session, Session), session
    ended = complete_session.sync(session.session_id, client=bearer(session.session_token))
    equal((ended.status, ended.reason), (SessionStatus.TERMINATED, EndReason.COMPLETED), "the end")
    equal([one.id for one in list_queues.sync(client=operator).items], ["fair"], "the queues")
    equal(code(get_queue_now.sync("none", client=anybody)), "QUEUE_NOT_FOUND", "a queue that is not there")
    equal(code(list_queues.sync(client=bearer("wrong"))), "UNAUTHORIZED", "a wrong token")


def jobs():
    new = NewJob(type_="mail", payload={"to": "ann@example.org"})
    first = dispatch_job.sync(client=operator, body=new, idempotency_key="order-8")
    second = dispatch_job.sync(client=operator, body=new, idempotency_key="order-8")
    equal((second.id, second.new), (first.id, False), "the same key")
    doomed = NewJob(type_="mail", retry=RetryPolicy(attempts=0))
    many = BulkDispatchRequest(jobs=[NewJob(type_="mail"), doomed, NewJob(type_="")])
    items = dispatch_many.sync(client=operator, body=many).items
    equal([(one.index, one.new) for one in items], [(0, True), (1, True), (2, False)], "many at once")
    doomed_id = items[1].id

    # Page by page, two at a time.
    page = list_jobs.sync(client=operator, limit=2)
    seen = [one.id for one in page.items]
    while page.next_cursor is not None:
        page = list_jobs.sync(client=operator, limit=2, cursor=page.next_cursor)
        seen += [one.id for one in page.items]
    equal(len(set(seen)), 3, "the jobs of all pages")

    claim = ClaimRequest(worker_id="python-1", types=["mail"], limit=10, wait_ms=1000)
    leases = claim_leases.sync(client=operator, body=claim).items
    equal(len(leases), 3, "the leases")
    for lease in leases:
        if lease.job.id == doomed_id:
            error = JobError(name="Smtp", message="no such mailbox")
            body = FailRequest(worker_id=lease.worker_id, token=lease.token, error=error)
            equal(fail_job.sync(lease.job.id, client=operator, body=body).outcome, AckOutcome.DEAD, "its last attempt")
            continue
        body = CompleteRequest(worker_id=lease.worker_id, token=lease.token, result={"sent": True})
        done = complete_job.sync(lease.job.id, client=operator, body=body)
        equal(done.outcome, AckOutcome.COMPLETED, "an end")
        twice = complete_job.sync(lease.job.id, client=operator, body=body)
        equal(code(twice), "LEASE_LOST", "a lease that is over")
    dead = list_dead_letters.sync(client=operator).items
    equal([(one.id, one.result.error.message) for one in dead], [(doomed_id, "no such mailbox")], "dead letters")
    replay_job.sync(doomed_id, client=operator)
    equal(get_job.sync(doomed_id, client=operator).status, JobState.WAITING, "its state")
    equal(code(get_job.sync("none", client=operator)), "JOB_NOT_FOUND", "a job that is not there")
    wrong = dispatch_job.sync(client=operator, body=NewJob(type_="mail", priority=11))
    equal(code(wrong), "INVALID_REQUEST", "a priority that is too high")


room()
jobs()
print("done")
