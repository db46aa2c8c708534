// The service worker of the console: shows notifications while no tab is open, and opens the conversation.
self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));

self.addEventListener("push", (event) => {
  let data = {};
  try { data = event.data?.json() ?? {}; } catch { /* not ours */ }
  const id = /^[\w-]+$/.test(data.conversation_id ?? "") ? data.conversation_id : "";
  const options = { body: String(data.body ?? ""), tag: id || "desk", renotify: Boolean(id), data: { id } };
  event.waitUntil(self.registration.showNotification(String(data.title || "Desk"), options));
});

self.addEventListener("notificationclick", (event) => {
  event.notification.close();
  const id = event.notification.data?.id ?? "";
  event.waitUntil((async () => {
    const tabs = await self.clients.matchAll({ type: "window", includeUncontrolled: true });
    const tab = tabs.find((one) => new URL(one.url).pathname === "/desk");
    if (!tab) return self.clients.openWindow(id ? `/desk#all/${id}` : "/desk");
    tab.postMessage({ open: id });
    return tab.focus();
  })());
});
