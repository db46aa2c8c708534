//! Messages of OTLP, as far as traffic needs them: `opentelemetry/proto/collector/metrics/v1` and
//! `opentelemetry/proto/metrics/v1`. Fields that are not here are skipped, as the specification says.
//!
//! The members of a `oneof` are fields of their own, which are the same bytes. JSON has lower camel case,
//! and 64-bit numbers as text.

use prost::Message;
use serde::{Deserialize, Deserializer, Serialize, de};

/// `ExportMetricsServiceRequest`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ExportMetricsRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) resource_metrics: Vec<ResourceMetrics>,
}

/// `ExportMetricsServiceResponse`.
#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExportMetricsResponse {
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) partial_success: Option<PartialSuccess>,
}

/// `ExportMetricsPartialSuccess`.
#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PartialSuccess {
    #[prost(int64, tag = "1")]
    #[serde(serialize_with = "as_text")]
    pub(super) rejected_data_points: i64,
    #[prost(string, tag = "2")]
    pub(super) error_message: String,
}

/// `ResourceMetrics`: the metrics of one instance of a program.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scope_metrics: Vec<ScopeMetrics>,
}

/// `Resource`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<KeyValue>,
}

/// `KeyValue`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AnyValue>,
}

/// `AnyValue`, the kinds that are looked at.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct AnyValue {
    #[prost(string, optional, tag = "1")]
    pub(super) string_value: Option<String>,
    #[prost(int64, optional, tag = "3")]
    #[serde(deserialize_with = "optional_integer")]
    pub(super) int_value: Option<i64>,
}

impl AnyValue {
    pub(super) fn text(&self) -> Option<&str> {
        self.string_value.as_deref()
    }

    pub(super) fn integer(&self) -> Option<i64> {
        self.int_value.or_else(|| self.string_value.as_ref()?.parse().ok())
    }
}

/// `ScopeMetrics`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ScopeMetrics {
    #[prost(message, repeated, tag = "2")]
    pub(super) metrics: Vec<Metric>,
}

/// `Metric`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Metric {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, optional, tag = "5")]
    pub(super) gauge: Option<OtherPoints>,
    #[prost(message, optional, tag = "7")]
    pub(super) sum: Option<SumMetric>,
    #[prost(message, optional, tag = "9")]
    pub(super) histogram: Option<HistogramMetric>,
    #[prost(message, optional, tag = "10")]
    pub(super) exponential_histogram: Option<ExponentialMetric>,
    #[prost(message, optional, tag = "11")]
    pub(super) summary: Option<OtherPoints>,
}

impl Metric {
    /// Returns the number of data points; at least one, so that a metric without any is told too.
    pub(super) fn points(&self) -> usize {
        let points = [
            self.gauge.as_ref().map(|all| all.data_points.len()),
            self.sum.as_ref().map(|all| all.data_points.len()),
            self.histogram.as_ref().map(|all| all.data_points.len()),
            self.exponential_histogram.as_ref().map(|all| all.data_points.len()),
            self.summary.as_ref().map(|all| all.data_points.len()),
        ];
        points.into_iter().flatten().sum::<usize>().max(1)
    }
}

/// Data points that are only counted.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct OtherPoints {
    #[prost(message, repeated, tag = "1")]
    pub(super) data_points: Vec<OtherPoint>,
}

/// A data point of which nothing is read.
#[derive(Clone, Copy, PartialEq, Message, Deserialize)]
#[serde(default)]
pub(super) struct OtherPoint {}

/// `Sum`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct SumMetric {
    #[prost(message, repeated, tag = "1")]
    pub(super) data_points: Vec<NumberPoint>,
    #[prost(int32, tag = "2")]
    pub(super) aggregation_temporality: i32,
}

/// `NumberDataPoint`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NumberPoint {
    #[prost(double, optional, tag = "4")]
    pub(super) as_double: Option<f64>,
    #[prost(sfixed64, optional, tag = "6")]
    #[serde(deserialize_with = "optional_integer")]
    pub(super) as_int: Option<i64>,
}

impl NumberPoint {
    pub(super) fn number(&self) -> f64 {
        self.as_double.or(self.as_int.map(|int| int as f64)).unwrap_or(0.0)
    }
}

/// `Histogram`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct HistogramMetric {
    #[prost(message, repeated, tag = "1")]
    pub(super) data_points: Vec<HistogramPoint>,
    #[prost(int32, tag = "2")]
    pub(super) aggregation_temporality: i32,
}

/// The bit of `flags` that says there is no value.
const NO_RECORDED_VALUE: u32 = 1;

/// `HistogramDataPoint`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct HistogramPoint {
    #[prost(message, repeated, tag = "9")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(fixed64, tag = "2")]
    #[serde(deserialize_with = "unsigned")]
    pub(super) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "4")]
    #[serde(deserialize_with = "unsigned")]
    pub(super) count: u64,
    #[prost(double, optional, tag = "5")]
    pub(super) sum: Option<f64>,
    #[prost(fixed64, repeated, tag = "6")]
    #[serde(deserialize_with = "many_unsigned")]
    pub(super) bucket_counts: Vec<u64>,
    #[prost(double, repeated, tag = "7")]
    pub(super) explicit_bounds: Vec<f64>,
    #[prost(uint32, tag = "10")]
    pub(super) flags: u32,
    #[prost(double, optional, tag = "12")]
    pub(super) max: Option<f64>,
}

impl HistogramPoint {
    pub(super) fn is_recorded(&self) -> bool {
        self.flags & NO_RECORDED_VALUE == 0
    }
}

/// `ExponentialHistogram`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ExponentialMetric {
    #[prost(message, repeated, tag = "1")]
    pub(super) data_points: Vec<ExponentialPoint>,
    #[prost(int32, tag = "2")]
    pub(super) aggregation_temporality: i32,
}

/// `ExponentialHistogramDataPoint`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ExponentialPoint {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(fixed64, tag = "2")]
    #[serde(deserialize_with = "unsigned")]
    pub(super) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "4")]
    #[serde(deserialize_with = "unsigned")]
    pub(super) count: u64,
    #[prost(sint32, tag = "6")]
    pub(super) scale: i32,
    #[prost(fixed64, tag = "7")]
    #[serde(deserialize_with = "unsigned")]
    pub(super) zero_count: u64,
    #[prost(message, optional, tag = "8")]
    pub(super) positive: Option<ExponentialBuckets>,
    #[prost(uint32, tag = "10")]
    pub(super) flags: u32,
}

impl ExponentialPoint {
    pub(super) fn is_recorded(&self) -> bool {
        self.flags & NO_RECORDED_VALUE == 0
    }
}

/// `ExponentialHistogramDataPoint.Buckets`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ExponentialBuckets {
    #[prost(sint32, tag = "1")]
    pub(super) offset: i32,
    #[prost(uint64, repeated, tag = "2")]
    #[serde(deserialize_with = "many_unsigned")]
    pub(super) bucket_counts: Vec<u64>,
}

/// A 64-bit number: text in JSON, or a number, which programs send all the same.
#[derive(Deserialize)]
#[serde(untagged)]
enum WideNumber {
    Number(serde_json::Number),
    Text(String),
}

impl WideNumber {
    fn read<T: std::str::FromStr, E: de::Error>(self) -> Result<T, E> {
        let text = match self {
            WideNumber::Number(number) => number.to_string(),
            WideNumber::Text(text) => text,
        };
        text.parse().map_err(|_| E::custom(format!("{text:?} is not a 64-bit integer")))
    }
}

fn unsigned<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    WideNumber::deserialize(deserializer)?.read()
}

fn many_unsigned<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u64>, D::Error> {
    Vec::<WideNumber>::deserialize(deserializer)?.into_iter().map(WideNumber::read).collect()
}

fn optional_integer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    Option::<WideNumber>::deserialize(deserializer)?.map(WideNumber::read).transpose()
}

fn as_text<S: serde::Serializer>(number: &i64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(number)
}
