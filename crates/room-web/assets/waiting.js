// Live updates of the waiting page: polling, an event stream near the front, one tab that polls for all.
// The page is complete without it; whenever more than numbers changes, the page itself is fetched and its
// main part is replaced.
(function () {
  "use strict";
  var body = document.body, queue = body.dataset.queue;
  if (!queue || !window.fetch || !window.Promise) {
    // No queue, or an old browser: reload as pages without scripts do.
    if (body.dataset.poll) setTimeout(function () { location.reload(); }, body.dataset.poll * (1 + Math.random() * 0.33));
    return;
  }
  var lang = document.documentElement.lang, token = body.dataset.token || "", here = body.dataset.here;
  var api = "/_wr/api/v1/queues/" + queue;
  var FLOOR = 3000, CEILING = 60000;
  var timer = 0, asking = false, last = 0, fails = 0, source = null, seen = null, going = false, spoken = 0, refused = 0;
  var leads = !(navigator.locks && window.BroadcastChannel);
  var channel = window.BroadcastChannel ? new BroadcastChannel("waiting-" + queue) : null;

  function $(selector) { return document.querySelector(selector); }
  function view() { var main = $("#main"); return main ? main.dataset.view : ""; }
  function waits() { return /^(waiting|paused|closed|admitted)$/.test(view()); }
  function poll() { return Number(body.dataset.poll) || 10000; }

  function call(method, path) {
    var query = "?lang=" + encodeURIComponent(lang) + (token ? "&t=" + encodeURIComponent(token) : "");
    return fetch(api + path + query, {
      method: method, credentials: "same-origin", cache: "no-store",
      headers: { Accept: "application/json" }
    });
  }

  // Up to a third later, so that visitors who arrived together do not poll together.
  function plan(ms) {
    clearTimeout(timer);
    timer = setTimeout(tick, Math.max(FLOOR, ms) * (1 + Math.random() * 0.33));
  }

  function tick() {
    if (asking || going) return;
    // Pages without a position reload: loading is what enqueues.
    if (!waits()) { if (body.dataset.poll) load(true); return; }
    asking = true; last = Date.now();
    call("POST", "/heartbeat").then(function (answer) {
      if (answer.ok) return answer.json().then(function (position) { calm(); take(position); tell(position); });
      if (answer.status === 410 || answer.status === 401 || answer.status === 404) { calm(); return load(false); }
      throw new Error(String(answer.status));
    }).catch(function () {
      fails += 1;
      if (fails > 1) $("#offline").hidden = false;
      plan(Math.min(CEILING, 2000 * Math.pow(2, Math.min(fails, 5))));
    }).then(function () { asking = false; });
  }

  function calm() { fails = 0; $("#offline").hidden = true; }
  function tell(position) { if (channel) channel.postMessage(position); }

  // Name of the view of a position; the same names as on the server.
  function kind(position) {
    if (position.status !== "waiting") return position.status === "admitted" ? "admitted" : "other";
    return position.queue_status === "maintenance" ? "closed" : position.paused ? "paused" : "waiting";
  }

  function take(position) {
    var message = JSON.stringify(position.message || {});
    var before = seen && seen.message;
    seen = { status: position.status, message: message };
    if (position.status === "active") return go();
    if (kind(position) !== view() || (before && before !== message)) load(false);
    else paint(position);
    if (position.status === "waiting") {
      body.dataset.poll = position.next_poll_ms;
      if (leads) plan(position.next_poll_ms);
      if (leads && position.events_url && !source && Date.now() - refused > CEILING) listen();
    } else if (position.status === "admitted") arrived();
  }

  function put(selector, text) {
    var element = $(selector);
    if (element && text != null && element.textContent !== text) element.textContent = text;
  }

  function paint(position) {
    var words = position.text || {};
    put("[data-position]", words.position);
    put("[data-ahead]", words.ahead);
    put("[data-behind]", words.behind);
    put("[data-wait]", position.estimated_wait.text);
    var bar = $("progress");
    if (bar && position.progress != null) bar.value = Math.max(bar.value, position.progress);
    if (words.position) document.title = document.title.replace(/^(\(.*?\) )?/, "(" + words.position + ") ");
    stamp();
    // Not every number for screen readers, or nothing else could be heard.
    if (words.ahead && Date.now() - spoken > 30000) { spoken = Date.now(); say(words.ahead + ". " + (position.estimated_wait.text || "")); }
  }

  function say(text) { put("#announce", text); }

  function stamp() {
    var line = $("#updated"), time = line && line.querySelector("time"), now = new Date();
    if (!time) return;
    time.dateTime = now.toISOString();
    time.textContent = now.toLocaleTimeString(lang, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
    line.hidden = false;
  }

  // Loads the page itself, for changes of more than numbers. A page that enqueues must be navigated to.
  function load(anew) {
    if (anew) return location.replace(here);
    return fetch(here, { credentials: "same-origin", cache: "no-store", headers: { Accept: "text/html" } })
      .then(function (answer) { return answer.text(); })
      .then(function (text) {
        var page = new DOMParser().parseFromString(text, "text/html"), main = page.querySelector("#main");
        if (!main || main.dataset.view === "outside") return location.replace(here);
        var changed = main.dataset.view !== view();
        $("#main").replaceWith(document.importNode(main, true));
        document.title = page.title;
        if (page.body.dataset.poll) body.dataset.poll = page.body.dataset.poll; else delete body.dataset.poll;
        stamp();
        if (changed) { say(($("#title") || {}).textContent || ""); if (!document.hidden) $("#title").focus({ preventScroll: true }); }
        if (view() === "admitted") arrived();
        else if (body.dataset.poll && leads) plan(poll());
        if (!waits() && source) { source.close(); source = null; }
      })
      .catch(function () { plan(poll()); });
  }

  // Admitted. A hidden tab does not use up the turn: it blinks its title instead.
  var clock = 0;
  function arrived() {
    if (source) { source.close(); source = null; }
    var until = $("[data-until]"), end = until ? Date.now() + Number(until.dataset.until) * 1000 : 0;
    clearInterval(clock);
    clock = setInterval(function () {
      var left = Math.max(0, Math.round((end - Date.now()) / 1000)), text = Math.floor(left / 60) + ":" + ("0" + left % 60).slice(-2);
      if (end) put(".clock", text);
      if (document.hidden) document.title = document.title.charAt(0) === "●" ? "○" + document.title.slice(1) : "● " + document.title.replace(/^[●○] /, "");
      if (end && left === 0) { clearInterval(clock); load(false); }
    }, 1000);
    if (!document.hidden) soon();
  }

  function soon() {
    var note = $(".entering");
    if (note) { note.hidden = false; say(note.textContent); }
    setTimeout(function () { if (!document.hidden) go(); }, 1200);
  }

  // `replace`, so that the back button does not lead here again.
  function go() { if (going) return; going = true; clearInterval(clock); location.replace(here); }

  function listen() {
    if (!window.EventSource) return;
    var query = "?lang=" + encodeURIComponent(lang) + (token ? "&t=" + encodeURIComponent(token) : "");
    source = new EventSource(api + "/events" + query);
    ["position", "admitted", "paused", "resumed", "maintenance", "message"].forEach(function (name) {
      source.addEventListener(name, function (event) { var position = JSON.parse(event.data); calm(); take(position); tell(position); });
    });
    source.addEventListener("expired", function () { source.close(); source = null; tick(); });
    source.onerror = function () { if (source && source.readyState === 2) { source = null; refused = Date.now(); plan(poll()); } };
  }

  if (channel) channel.onmessage = function (event) { if (waits()) take(event.data); };

  // One tab polls for all; when it closes, the next one does. A tab that becomes visible polls once.
  if (!leads) {
    navigator.locks.request("waiting-" + queue, function () {
      leads = true;
      plan(poll());
      return new Promise(function () {});
    }).catch(function () { leads = true; plan(poll()); });
  }
  document.addEventListener("visibilitychange", function () {
    if (document.hidden) return;
    document.title = document.title.replace(/^[●○] /, "");
    if (view() === "admitted") return tick();
    if (Date.now() - last >= FLOOR) tick(); else plan(FLOOR);
  });
  window.addEventListener("pageshow", function (event) { going = false; if (event.persisted) tick(); });
  // Nothing happens on unload: a refresh must not cost the position.

  if (view() === "admitted") arrived();
  else if (waits()) { stamp(); tick(); }
  else if (body.dataset.poll) plan(poll());
})();
