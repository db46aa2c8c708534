//! What tests share: both stores, real servers, clients. A dev-dependency only.
