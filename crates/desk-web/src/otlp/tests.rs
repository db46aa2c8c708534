use super::message::{
    ExponentialBuckets, ExponentialMetric, HistogramMetric, NumberPoint, Resource, ScopeMetrics,
    SumMetric,
};
use super::*;

fn attribute(key: &str, text: &str) -> KeyValue {
    let value = AnyValue { string_value: Some(text.to_owned()), ..AnyValue::default() };
    KeyValue { key: key.to_owned(), value: Some(value) }
}

fn number(key: &str, number: i64) -> KeyValue {
    let value = AnyValue { int_value: Some(number), ..AnyValue::default() };
    KeyValue { key: key.to_owned(), value: Some(value) }
}

fn durations(name: &str, point: HistogramPoint) -> Metric {
    let histogram = HistogramMetric { data_points: vec![point], aggregation_temporality: 2 };
    Metric { name: name.to_owned(), histogram: Some(histogram), ..Metric::default() }
}

fn point(buckets: &[u64], sum: f64) -> HistogramPoint {
    HistogramPoint {
        attributes: vec![
            attribute("http.request.method", "GET"),
            attribute("http.route", "/users/{id}"),
            number("http.response.status_code", 200),
        ],
        start_time_unix_nano: 7,
        count: buckets.iter().sum(),
        sum: Some(sum),
        bucket_counts: buckets.to_vec(),
        explicit_bounds: vec![0.01, 0.1, 1.0],
        ..HistogramPoint::default()
    }
}

fn resource(metrics: Vec<Metric>) -> ResourceMetrics {
    ResourceMetrics {
        resource: Some(Resource { attributes: vec![attribute("service.name", "shop")] }),
        scope_metrics: vec![ScopeMetrics { metrics }],
    }
}

fn read(resource: &ResourceMetrics) -> (Export, Rejections) {
    let mut rejected = Rejections::default();
    (Export::of(resource, &mut rejected), rejected)
}

#[test]
fn a_duration_becomes_requests_of_an_endpoint() {
    let metric = durations("http.server.request.duration", point(&[1, 3, 0, 1], 4.0));
    let (export, rejected) = read(&resource(vec![metric]));
    assert_eq!((export.app.as_str(), rejected.points), ("shop", 0));
    let [one] = export.requests.try_into().unwrap();
    assert_eq!((one.method.as_str(), one.route.as_deref()), ("GET", Some("/users/{id}")));
    assert_eq!((one.status, one.requests, one.since_start), (200, 5, Some(7)));
    let ms: Vec<_> = one.times.iter().map(|(time, count)| (time.as_millis(), *count)).collect();
    assert_eq!(ms, [(5, 1), (31, 3), (1_000, 1)]);
}

#[test]
fn the_older_metric_is_in_milliseconds_and_counts_only_by_itself() {
    let older = HistogramPoint {
        attributes: vec![attribute("http.method", "GET"), number("http.status_code", 500)],
        ..point(&[0, 2, 0, 0], 50.0)
    };
    let older = durations("http.server.duration", older);
    let (export, _) = read(&resource(vec![older.clone()]));
    assert_eq!((export.requests[0].status, export.requests[0].route.as_deref()), (500, None));
    assert_eq!(
        export.requests[0].times,
        [(Duration::from_millis(25), 2)],
        "all in one bucket: the mean"
    );
    let both = vec![older, durations("http.server.request.duration", point(&[1, 0, 0, 0], 0.001))];
    let (export, rejected) = read(&resource(both));
    assert_eq!((export.requests.len(), rejected.points), (1, 0));
}

#[test]
fn an_exponential_histogram_counts_as_well() {
    let positive = ExponentialBuckets { offset: -4, bucket_counts: vec![2, 0, 1] };
    let point = ExponentialPoint {
        attributes: vec![attribute("http.request.method", "_OTHER"), attribute("error.type", "x")],
        count: 4,
        zero_count: 1,
        positive: Some(positive),
        ..ExponentialPoint::default()
    };
    let metric = Metric {
        name: "http.server.request.duration".to_owned(),
        exponential_histogram: Some(ExponentialMetric {
            data_points: vec![point],
            aggregation_temporality: 1,
        }),
        ..Metric::default()
    };
    let (export, _) = read(&resource(vec![metric]));
    let one = &export.requests[0];
    assert_eq!((one.status, one.since_start), (500, None), "an error without a status; delta");
    let ms: Vec<_> = one.times.iter().map(|(time, count)| (time.as_millis(), *count)).collect();
    assert_eq!(ms, [(0, 1), (88, 2), (353, 1)]);
}

#[test]
fn active_requests_are_added_up_and_never_below_zero() {
    let points = |numbers: &[i64]| {
        let points = numbers.iter().map(|n| NumberPoint { as_int: Some(*n), as_double: None });
        let sum = SumMetric { data_points: points.collect(), aggregation_temporality: 2 };
        Metric {
            name: "http.server.active_requests".to_owned(),
            sum: Some(sum),
            ..Metric::default()
        }
    };
    assert_eq!(read(&resource(vec![points(&[3, 4])])).0.active, Some(7));
    assert_eq!(read(&resource(vec![points(&[-3])])).0.active, Some(0));
}

#[test]
fn other_metrics_are_told_and_are_no_error() {
    let other = Metric { name: "process.cpu.time".to_owned(), ..durations("", point(&[1], 1.0)) };
    let unknown_kind =
        Metric { name: "http.server.request.duration".to_owned(), ..Metric::default() };
    let (export, rejected) = read(&resource(vec![other, unknown_kind]));
    assert!(export.is_empty());
    let told = rejected.told().unwrap();
    assert_eq!(told.rejected_data_points, 2);
    assert!(told.error_message.contains("process.cpu.time, http.server.request.duration"));
}

#[test]
fn json_is_read_as_protobuf_is() {
    let text = r#"{"resourceMetrics":[{"resource":{"attributes":[
        {"key":"service.name","value":{"stringValue":"my shop"}},
        {"key":"host.name","value":{"stringValue":"web"}},{"key":"process.pid","value":{"intValue":"12"}},
        {"key":"process.args","value":{"arrayValue":{"values":[]}}}],"droppedAttributesCount":0},
      "scopeMetrics":[{"scope":{"name":"x"},"metrics":[{"name":"http.server.request.duration","unit":"s",
        "histogram":{"aggregationTemporality":1,"dataPoints":[{"attributes":[
          {"key":"http.response.status_code","value":{"intValue":404}}],
          "startTimeUnixNano":"1700000000000000000","timeUnixNano":"1700000000000000001","count":"3",
          "sum":0.6,"bucketCounts":["0","3"],"explicitBounds":[0.1],"min":0.1}]}}]}]}]}"#;
    let request = BodyEncoding::Json.read(text.as_bytes()).unwrap();
    let (export, _) = read(&request.resource_metrics[0]);
    assert_eq!((export.app.as_str(), export.instance.as_str()), ("my-shop", "web-12"));
    assert_eq!((export.requests[0].status, export.requests[0].requests), (404, 3));
    assert_eq!(export.requests[0].times, [(Duration::from_millis(200), 3)]);
    let encoded = request.encode_to_vec();
    assert_eq!(BodyEncoding::Protobuf.read(&encoded).unwrap(), request);
    for bad in ["", "[", "3", r#"{"resourceMetrics":[{"scopeMetrics":3}]}"#] {
        assert!(BodyEncoding::Json.read(bad.as_bytes()).is_err(), "{bad}");
    }
    for bad in [&b"\x0a\xff"[..], b"hello", b"\xff\xff\xff"] {
        assert!(BodyEncoding::Protobuf.read(bad).is_err(), "{bad:?}");
    }
}
