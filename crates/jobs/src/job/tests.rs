//! What is read and written of jobs.

use super::*;

fn parse(text: &str) -> Result<Job, MalformedJob> {
    Job::parse(JobId::stored("j1"), text.as_bytes())
}

fn sample() -> Job {
    let mut new = NewJob::new("mail", &serde_json::json!({"to": "ann"})).unwrap();
    new.job.id = JobId::stored("j1");
    new.job.created_at = Millis(1_732_376_323_000);
    new.job
}

#[test]
fn a_lean_job_has_what_a_v1_worker_needs_and_no_more() {
    assert_eq!(
        sample().to_text(JobFormat::Lean),
        r#"{"jobId":"j1","type":"mail","payload":{"to":"ann"},"retry":{"attempts":3},"createdAt":1732376323000,"attempts":0}"#
    );
}

#[test]
fn a_full_job_is_what_v1_dispatch_writes() {
    assert_eq!(
        sample().to_text(JobFormat::Full),
        concat!(
            r#"{"jobId":"j1","type":"mail","payload":{"to":"ann"},"schedule":{},"#,
            r#""retry":{"attempts":3,"backoff":{"type":"exponential","delay":2000}},"priority":5,"#,
            r#""dependsOn":[],"target":{},"metadata":{},"createdAt":1732376323000,"attempts":0}"#
        )
    );
}

#[test]
fn every_field_survives_writing_and_reading() {
    let new = NewJob::new("mail", &[1, 2])
        .unwrap()
        .priority(9)
        .schedule(Schedule {
            delay: Some(Duration::from_millis(5)),
            run_at: Some(Millis(7)),
            cron: Some("0 3 * * *".into()),
            timezone: Some("Europe/Berlin".into()),
            overlap: Overlap::Allow,
            catch_up: CatchUp::All,
        })
        .retry(Retry {
            attempts: 7,
            backoff: Backoff {
                growth: Growth::Linear,
                delay: Duration::from_millis(10),
                max_delay: Some(Duration::from_millis(90)),
                jitter: true,
            },
            skip_on: vec!["Fatal".into()],
            reroute_on: vec!["Gpu".into()],
        })
        .target(JobTarget::default().stack("rust").capability("gpu").region("eu").all())
        .depends_on([JobId::stored("p1"), JobId::stored("p2")])
        .on_parent_failure(OnParentFailure::Run)
        .metadata("a", "b")
        .max_concurrent(2)
        .max_per_minute(30)
        .timeout(Duration::from_secs(3))
        .expires_at(Millis(99));
    let mut job = new.job;
    job.id = JobId::stored("j1");
    job.attempts = 2;
    job.created_at = Millis(5);
    job.avoid = vec!["w1".into()];
    for shape in [JobFormat::Lean, JobFormat::Full] {
        let text = job.to_text(shape);
        assert!(!text.contains("null"), "{text}");
        let read = parse(&text).unwrap();
        assert_eq!(read.to_text(shape), text);
        assert_eq!(format!("{read:?}"), format!("{job:?}"));
    }
}

#[test]
fn a_job_of_another_producer_is_read_with_v1_defaults() {
    let job = parse(r#"{"type":"x"}"#).unwrap();
    assert_eq!(job.retry, Retry::default());
    assert_eq!(job.priority, Priority::NORMAL);
    assert_eq!(job.payload.get(), "{}");
    let job = parse(r#"{"type":"x","priority":"9","createdAt":1.7e12,"payload":null,"rateLimit":null,"schedule":null,"metadata":null,"dependsOn":null,"retry":null}"#).unwrap();
    assert_eq!(job.priority.get(), 9);
    assert_eq!(job.created_at, Millis(1_700_000_000_000));
    for (stored, level) in [("11", 10), ("6.9", 6), ("0", 5), ("-3", 1), ("\"x\"", 5), ("[]", 5)] {
        let job = parse(&format!(r#"{{"type":"x","priority":{stored}}}"#)).unwrap();
        assert_eq!(job.priority.get(), level, "{stored}");
    }
}

#[test]
fn poison_is_told_with_its_reason() {
    for (text, reason) in [
        ("", "not a JSON object"),
        ("[1]", "not a JSON object"),
        (r#"{"payload":1}"#, "it has no type"),
        (r#"{"type":null}"#, "it has no type"),
        (r#"{"type":"x","target":{"stack":null}}"#, "target.stack"),
        (r#"{"type":"x","target":{"region":"eu"}}"#, "target.region"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
    assert!(Job::parse(JobId::stored("a"), b"\xff").is_err());
    let deep = format!(r#"{{"type":"x","payload":{}1{}}}"#, "[".repeat(5_000), "]".repeat(5_000));
    assert!(parse(&deep).is_ok(), "a payload is not looked into");
}

#[test]
fn a_lone_surrogate_in_a_payload_stays_as_it_is() {
    let job = parse(r#"{"type":"x","payload":{"a":"\ud800"}}"#).unwrap();
    assert_eq!(job.payload.get(), r#"{"a":"\ud800"}"#);
}

#[test]
fn results_leave_out_what_is_absent() {
    let result: JobResult =
        serde_json::from_str(r#"{"success":true,"completedAt":5,"processingTime":2}"#).unwrap();
    assert_eq!(
        serde_json::to_string(&result).unwrap(),
        r#"{"success":true,"completedAt":5,"processingTime":2}"#
    );
    let read: JobResult =
        serde_json::from_str(r#"{"success":false,"error":{},"completedAt":5,"processingTime":2}"#)
            .unwrap();
    assert_eq!(read.error, Some(JobError::default()));
}

#[test]
fn a_bad_new_job_is_refused_with_its_first_problem() {
    let job = NewJob::new("x", &()).unwrap();
    assert_eq!(job.job.payload.get(), "{}");
    assert!(job.clone().priority(11).check().is_err());
    assert!(job.clone().once("", Duration::ZERO).check().is_err());
    assert!(job.clone().timeout(Duration::ZERO).check().is_err());
    assert!(NewJob::new("x y", &()).is_err());
    assert!(NewJob::new("x", &"y".repeat(PAYLOAD_MAX)).is_err());
    job.check().unwrap();
}
