//! The work behind the sale: mails, invoices, payments, videos, reports. Some of it fails and is
//! tried again, some for good; some can only be done by one worker, and some by none.

use std::time::Duration;

use jobs::worker::{Attempt, Logger, Payload, Reporter};
use jobs::{Backoff, Fault, JobId, JobTarget, Jobs, Labels, NewJob, Overlap, Retry, Worker};
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use web::demo::{report_end, tide};

const BEAT: Duration = Duration::from_millis(250);
/// Above this many waiting jobs the shop takes no more orders for a while.
const ENOUGH: usize = 2_000;

/// Starts workers and orders, on `tasks` until `stop`.
pub(crate) fn start(jobs: &Jobs, tasks: &TaskTracker, stop: &CancellationToken) {
    workers(jobs, tasks, stop);
    let (jobs, stop) = (jobs.clone(), stop.clone());
    tasks.spawn(async move { report_end(run(jobs, stop).await, "the shop") });
}

/// Puts the workers to work.
fn workers(jobs: &Jobs, tasks: &TaskTracker, stop: &CancellationToken) {
    let crew: [(&str, &str, &[&str], usize); 5] = [
        ("mail-1", "eu-central", &["smtp"], 4),
        ("mail-2", "us-east", &["smtp"], 4),
        ("paper-1", "eu-central", &["pdf"], 3),
        ("till-1", "eu-central", &["payments"], 4),
        ("media-1", "eu-central", &["gpu", "ffmpeg"], 2),
    ];
    for (name, region, can, at_once) in crew {
        let labels = match Labels::new(name) {
            Ok(labels) => labels.stack("demo").region(region).capabilities(can.iter().copied()),
            Err(error) => {
                tracing::warn!(error = %error, "a worker of the demo has no name");
                continue;
            }
        };
        let worker = Worker::new(jobs, labels, ()).concurrency(at_once).background(false);
        let worker = match name {
            "paper-1" => worker.handle("invoice.render", render).handle("report.sales", report),
            "till-1" => worker.handle("payment.capture", capture),
            "media-1" => {
                worker.handle("video.transcode", transcode).handle("thumbnail.make", small)
            }
            _ => worker.handle("email.send", send).handle("cache.warm", small),
        };
        let stop = stop.clone();
        tasks.spawn(async move {
            if let Err(error) = worker.grace(Duration::from_secs(1)).run(stop).await {
                tracing::warn!(worker = name, error = %error, "a worker of the demo ended");
            }
        });
    }
}

/// Takes orders until told to stop.
async fn run(jobs: Jobs, stop: CancellationToken) -> anyhow::Result<()> {
    let mut chance = fastrand::Rng::new();
    let hourly = |id: &str, job_type: &str, cron: &str| -> anyhow::Result<NewJob> {
        Ok(NewJob::new(job_type, &json!({ "by": id }))?
            .id(JobId::parse(id)?)
            .cron(cron)
            .overlap(Overlap::Skip))
    };
    jobs.schedule(hourly("sales-report", "report.sales", "* * * * *")?.timezone("Europe/Berlin"))
        .await?;
    jobs.schedule(hourly("warm-the-cache", "cache.warm", "*/20 * * * * *")?).await?;
    jobs.schedule(hourly("nightly-clean-up", "clean-up", "30 3 * * *")?.timezone("Europe/Berlin"))
        .await?;
    jobs.pause_schedule(&JobId::parse("nightly-clean-up")?).await?;
    for ticket in 1..=3 {
        let fax = NewJob::new("fax.send", &json!({ "order": ticket, "to": "+49 30 555 01" }))?;
        jobs.dispatch(fax.target(JobTarget::default().capability("fax"))).await?;
    }

    let mut beat = interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut order: u64 = 10_000;
    loop {
        tokio::select! {
            _ = beat.tick() => {}
            () = stop.cancelled() => return Ok(()),
        }
        if jobs.stats().await?.waiting > ENOUGH {
            continue;
        }
        let busy = tide(jobs.now(), 180_000);
        let mut lot = Vec::new();
        for (per_second, make) in [
            (2.0 + 5.0 * busy, mail as Maker),
            (0.4 + busy, invoice),
            (0.5 + busy, payment),
            (0.1, reminder),
        ] {
            let expected = per_second * BEAT.as_secs_f64();
            let count = expected.trunc() as usize + usize::from(chance.f64() < expected.fract());
            for _ in 0..count {
                order += 1;
                lot.push(make(order, &mut chance)?);
            }
        }
        for taken in jobs.dispatch_all(lot).await {
            taken?;
        }
        if chance.f64() < 0.03 {
            order += 1;
            film(&jobs, order).await?;
        }
    }
}

type Maker = fn(u64, &mut fastrand::Rng) -> Result<NewJob, jobs::Error>;

fn mail(order: u64, chance: &mut fastrand::Rng) -> Result<NewJob, jobs::Error> {
    let what = chance.choice(["order-confirmation", "ticket", "password-reset", "newsletter"]);
    let payload = json!({ "template": what, "to": format!("guest-{order}@mail.example") });
    let job = NewJob::new("email.send", &payload)?
        .priority(if what == Some("password-reset") { 8 } else { 5 })
        .target(JobTarget::default().capability("smtp"));
    Ok(job)
}

fn invoice(order: u64, chance: &mut fastrand::Rng) -> Result<NewJob, jobs::Error> {
    let payload = json!({ "order": order, "pages": chance.u32(1..6), "currency": "EUR" });
    Ok(NewJob::new("invoice.render", &payload)?.target(JobTarget::default().capability("pdf")))
}

fn payment(order: u64, chance: &mut fastrand::Rng) -> Result<NewJob, jobs::Error> {
    let cents = chance.u32(2_900..24_900);
    let payload =
        json!({ "order": order, "cents": cents, "card": { "brand": "visa", "last4": "4242" } });
    let retry = Retry {
        attempts: 3,
        backoff: Backoff { delay: Duration::from_secs(1), jitter: true, ..Backoff::default() },
        skip_on: vec!["CardDeclined".to_owned()],
        ..Retry::default()
    };
    Ok(NewJob::new("payment.capture", &payload)?
        .priority(9)
        .retry(retry)
        .timeout(Duration::from_secs(20))
        .target(JobTarget::default().capability("payments")))
}

fn reminder(order: u64, chance: &mut fastrand::Rng) -> Result<NewJob, jobs::Error> {
    let payload =
        json!({ "template": "doors-open-soon", "to": format!("guest-{order}@mail.example") });
    Ok(NewJob::new("email.send", &payload)?.delay(Duration::from_secs(chance.u64(60..240))))
}

/// A film, and pictures of it once it is there.
async fn film(jobs: &Jobs, order: u64) -> Result<(), jobs::Error> {
    let target = JobTarget::default().capability("gpu").region("eu-central").all();
    let payload = json!({ "clip": format!("teaser-{order}.mov"), "to": ["1080p", "720p"] });
    let film = jobs.dispatch(NewJob::new("video.transcode", &payload)?.target(target)).await?;
    let small = NewJob::new("thumbnail.make", &json!({ "clip": format!("teaser-{order}.mov") }))?;
    jobs.dispatch(small.depends_on([film.id])).await?;
    Ok(())
}

async fn send(Payload(mail): Payload<Value>, log: Logger) -> Result<Value, Fault> {
    log.line(format!("connecting to mx.example for {}", mail["to"])).await;
    sleep(Duration::from_millis(fastrand::u64(60..700))).await;
    if fastrand::f64() < 0.06 {
        return Err(Fault::named("SmtpError", "451 4.7.1 the mailbox is busy, try again later"));
    }
    Ok(json!({ "message_id": format!("<{:016x}@tickets.example>", fastrand::u64(..)) }))
}

async fn capture(
    Payload(order): Payload<Value>,
    attempt: Attempt,
    log: Logger,
) -> Result<Value, Fault> {
    log.line(format!("order {}, attempt {}", order["order"], attempt.number)).await;
    sleep(Duration::from_millis(fastrand::u64(150..1_200))).await;
    match fastrand::u32(0..100) {
        0..2 => Err(Fault::named("CardDeclined", "the bank says no: insufficient funds")),
        2..9 => Err(Fault::named("GatewayTimeout", "the payment provider did not answer in 1 s")),
        _ => Ok(json!({ "captured": order["cents"] })),
    }
}

async fn render(Payload(order): Payload<Value>, progress: Reporter) -> Result<Value, Fault> {
    let pages = order["pages"].as_u64().unwrap_or(1).clamp(1, 20);
    for page in 0..pages {
        let share = page as f64 / pages as f64 * 100.0;
        progress.set(share, format!("page {} of {pages}", page + 1)).await;
        sleep(Duration::from_millis(fastrand::u64(200..800))).await;
    }
    if fastrand::f64() < 0.04 {
        return Err(Fault::named("TemplateError", "field \"tax_id\" is missing in line 42"));
    }
    Ok(json!({ "pdf": format!("invoice-{}.pdf", order["order"]), "pages": pages }))
}

async fn transcode(
    Payload(clip): Payload<Value>,
    progress: Reporter,
    log: Logger,
) -> Result<Value, Fault> {
    log.line(format!("opening {}", clip["clip"])).await;
    for step in 0..20_u32 {
        progress.set(f64::from(step) * 5.0, format!("frame {}", step * 240)).await;
        sleep(Duration::from_millis(fastrand::u64(250..900))).await;
    }
    log.line("writing 1080p and 720p").await;
    Ok(json!({ "frames": 4_800 }))
}

async fn report(progress: Reporter) -> Result<Value, Fault> {
    for (step, what) in ["orders", "refunds", "totals"].into_iter().enumerate() {
        progress.set(step as f64 * 33.0, what).await;
        sleep(Duration::from_millis(fastrand::u64(400..1_500))).await;
    }
    Ok(json!({ "tickets": fastrand::u32(100..2_000) }))
}

async fn small() -> Result<(), Fault> {
    sleep(Duration::from_millis(fastrand::u64(100..900))).await;
    Ok(())
}
