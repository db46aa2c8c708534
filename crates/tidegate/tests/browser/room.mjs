// What scenarios about the waiting room share: a queue, visitors who only use the API.
export class Line {
  constructor(tour, id) {
    Object.assign(this, { tour, id, path: `/api/v1/admin/queues/${id}` });
  }

  // A queue with one active visitor, in which nobody else is admitted.
  static async make(tour, id, settings = {}) {
    const line = new Line(tour, id);
    await tour.api("POST", "/api/v1/admin/queues", {
      id, name: "Spring Sale", max_active: 1, max_active_per_address: 0, admission: { count: 600, per_seconds: 60 }, ...settings,
    });
    await line.join();
    return line;
  }

  // Enqueues a visitor; returns the token of the position.
  async join() {
    const position = await this.tour.api("POST", `/api/v1/queues/${this.id}/enqueue`, {}, "");
    return position.token;
  }

  async joinMany(count) {
    const tokens = [];
    for (let n = 0; n < count; n += 1) tokens.push(await this.join());
    return tokens;
  }

  leave(token) {
    return this.tour.api("POST", `/api/v1/queues/${this.id}/leave`, undefined, token);
  }

  change(settings) {
    return this.tour.api("PATCH", this.path, settings);
  }

  act(verb, body) {
    return this.tour.api("POST", `${this.path}/${verb}`, body);
  }
}

// The number the page shows.
export async function position(page) {
  return Number((await page.locator("[data-position]").textContent()).replace(/\D/g, ""));
}
