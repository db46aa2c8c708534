//! Statements that are run one after the other.
//!
//! The driver of SQLite hands each call to a thread of its own and waits for it, which takes longer than most
//! statements. So on SQLite several statements are one call. Postgres prepares single ones.

use sqlx::{AnyConnection, AssertSqlSafe};

use crate::Error;

/// Most statements of one call: each combination is prepared and kept by itself.
const TOGETHER_MOST: usize = 8;

/// A query of the archive.
pub(crate) type ArchiveQuery<'q> = sqlx::query::Query<'q, sqlx::Any, sqlx::any::AnyArguments>;

/// A value in a statement.
#[derive(Clone, Debug)]
pub(crate) enum SqlValue {
    Text(Option<String>),
    Number(Option<i64>),
}

impl From<&str> for SqlValue {
    fn from(text: &str) -> Self {
        Self::Text(Some(text.to_owned()))
    }
}

impl From<String> for SqlValue {
    fn from(text: String) -> Self {
        Self::Text(Some(text))
    }
}

impl From<Option<String>> for SqlValue {
    fn from(text: Option<String>) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for SqlValue {
    fn from(number: i64) -> Self {
        Self::Number(Some(number))
    }
}

impl From<Option<i64>> for SqlValue {
    fn from(number: Option<i64>) -> Self {
        Self::Number(number)
    }
}

/// Binds values to a query, in order.
pub(crate) fn bind_all<'q>(
    query: ArchiveQuery<'q>,
    values: impl IntoIterator<Item = SqlValue>,
) -> ArchiveQuery<'q> {
    values.into_iter().fold(query, |query, value| match value {
        SqlValue::Text(text) => query.bind(text),
        SqlValue::Number(number) => query.bind(number),
    })
}

/// A statement and its values, which it calls `$1`, `$2` and so on.
#[derive(Clone, Debug)]
#[must_use = "it is not run yet"]
pub(crate) struct Statement {
    sql: &'static str,
    values: Vec<SqlValue>,
}

impl Statement {
    pub(crate) fn new(sql: &'static str) -> Self {
        Self { sql, values: Vec::new() }
    }

    /// Adds the next value.
    pub(crate) fn bind(mut self, value: impl Into<SqlValue>) -> Self {
        self.values.push(value.into());
        self
    }
}

/// Runs statements in order.
pub(crate) async fn execute_all(
    tx: &mut AnyConnection,
    statements: Vec<Statement>,
) -> Result<(), Error> {
    let together = if tx.backend_name() == "SQLite" { TOGETHER_MOST } else { 1 };
    let mut left = statements.into_iter().peekable();
    while left.peek().is_some() {
        let (mut sql, mut values) = (String::new(), Vec::new());
        for statement in left.by_ref().take(together) {
            if !sql.is_empty() {
                sql.push_str("; ");
            }
            push_renumbered(&mut sql, statement.sql, values.len());
            values.extend(statement.values);
        }
        bind_all(sqlx::query(AssertSqlSafe(sql)), values).execute(&mut *tx).await?;
    }
    Ok(())
}

/// Appends a statement whose values follow this many others.
fn push_renumbered(text: &mut String, sql: &str, before: usize) {
    let mut parts = sql.split('$');
    text.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = part.split_at(digits);
        let number = number.parse::<usize>().map_or(0, |number| number + before);
        text.push('$');
        text.push_str(&number.to_string());
        text.push_str(rest);
    }
}

#[cfg(test)]
mod tests {
    use sqlx::Row as _;

    use super::*;
    use crate::archive::Archive;

    #[test]
    fn values_are_numbered_behind_those_of_the_statements_before() {
        let mut text = String::new();
        push_renumbered(&mut text, "UPDATE t SET a = $2, b = $10 WHERE id = $1", 7);
        assert_eq!(text, "UPDATE t SET a = $9, b = $17 WHERE id = $8");
        let mut text = String::new();
        push_renumbered(&mut text, "DELETE FROM t", 3);
        assert_eq!(text, "DELETE FROM t");
    }

    #[tokio::test]
    async fn statements_of_one_call_get_their_own_values_and_fail_together() {
        let (archive, _folder) = Archive::open_new().await;
        let put = |name: &str, value: Option<String>| {
            Statement::new("INSERT INTO meta (value, name) VALUES (COALESCE($2, 'none'), $1)")
                .bind(name)
                .bind(value)
        };
        // More than one call, and not a multiple of it.
        let many: Vec<Statement> = (0..2 * TOGETHER_MOST + 3)
            .map(|n| put(&format!("test {n}"), (n % 5 > 0).then(|| format!("value {n}"))))
            .collect();
        let (first, again) = (many.clone(), vec![put("test new", None), many[1].clone()]);
        let write = |statements: Vec<Statement>| {
            archive.write(move |tx| {
                let statements = statements.clone();
                Box::pin(async move { execute_all(tx, statements).await })
            })
        };
        write(first).await.unwrap();
        write(again).await.unwrap_err();
        let rows =
            sqlx::query("SELECT name, value FROM meta WHERE name LIKE 'test %' ORDER BY rowid")
                .fetch_all(archive.readers())
                .await
                .unwrap();
        let found: Vec<(String, String)> =
            rows.iter().map(|row| (row.get("name"), row.get("value"))).collect();
        let wanted: Vec<(String, String)> = (0..2 * TOGETHER_MOST + 3)
            .map(|n| {
                let value = if n % 5 > 0 { format!("value {n}") } else { "none".to_owned() };
                (format!("test {n}"), value)
            })
            .collect();
        assert_eq!(found, wanted);
    }
}
