//! The one paging dialect of every list: `limit` and `cursor` in, `items` and `next_cursor` out.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::error::ApiError;

/// Items of a page when the caller does not say.
const LIMIT_DEFAULT: usize = 100;
/// Most items of a page.
pub const LIMIT_MAX: usize = 1_000;

/// The page of a list that is asked for.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PageQuery {
    /// Most items in the answer.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    pub limit: Option<usize>,
    /// Position to continue from: `next_cursor` of the last answer. Left out: the beginning.
    pub cursor: Option<String>,
}

impl PageQuery {
    /// Returns the number of items asked for.
    pub fn limit(&self) -> Result<usize, ApiError> {
        match self.limit.unwrap_or(LIMIT_DEFAULT) {
            limit @ 1..=LIMIT_MAX => Ok(limit),
            _ => Err(ApiError::invalid_field("limit", "a page has 1 to 1,000 items")),
        }
    }

    /// Returns the position in the list, for lists whose cursor is one; 0 at the beginning.
    pub fn offset(&self) -> Result<usize, ApiError> {
        self.parse_cursor(|text| text.parse().ok()).map(Option::unwrap_or_default)
    }

    /// Reads the cursor; `None` at the beginning.
    pub fn parse_cursor<T>(&self, read: impl Fn(&str) -> Option<T>) -> Result<Option<T>, ApiError> {
        match self.cursor.as_deref() {
            None | Some("") => Ok(None),
            Some(text) => read(text).map(Some).ok_or_else(|| {
                ApiError::invalid_field("cursor", "use next_cursor of an earlier answer as it was")
            }),
        }
    }
}

/// A page of a list.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// Cursor of the next page; null at the end.
    #[schema(required)]
    pub next_cursor: Option<String>,
}

impl<T> Page<T> {
    /// A page with the cursor of the next one.
    pub fn new(items: Vec<T>, next_cursor: Option<impl ToString>) -> Page<T> {
        Page { items, next_cursor: next_cursor.map(|cursor| cursor.to_string()) }
    }

    /// A page of a list whose cursor is the position: there may be more if it is full.
    pub fn at(offset: usize, limit: usize, items: Vec<T>) -> Page<T> {
        let next = (items.len() >= limit).then_some(offset + items.len());
        Page::new(items, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_page_has_a_next_one() {
        let page = Page::at(10, 2, vec!["a", "b"]);
        assert_eq!(page.next_cursor.as_deref(), Some("12"));
        assert_eq!(Page::at(10, 3, vec!["a", "b"]).next_cursor, None);
    }

    #[test]
    fn a_made_up_cursor_is_refused_by_name() {
        let query = |cursor: &str| PageQuery { cursor: Some(cursor.to_owned()), limit: None };
        assert_eq!(query("7").offset().ok(), Some(7));
        assert_eq!(query("").offset().ok(), Some(0));
        assert_eq!(query("x").offset().unwrap_err().field(), Some("cursor"));
        let query = PageQuery { limit: Some(0), cursor: None };
        assert_eq!(query.limit().unwrap_err().field(), Some("limit"));
    }
}
