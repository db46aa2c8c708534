//! A job queue on the BridgeMQ v1 schema: routes jobs to workers in any language.
