//! `tidegate token`: ls, create, revoke, reset-admin.

use std::time::{Duration, Instant};

use clap::Subcommand;
use serde_json::{Value, json};
use web::auth::Auth;

use crate::serve;
use web::cli::Context;
use web::cli::admin_token;
use web::cli::client::{self, Client};
use web::cli::{Exit, Failure, Outcome};
use web::config::Config;
use web::service::Services;

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenVerb {
    /// List all tokens
    #[command(alias = "list")]
    Ls,
    /// Create a token; its secret is printed only once
    Create {
        /// Role: worker, viewer, operator or admin
        #[arg(long, value_parser = ["worker", "viewer", "operator", "admin"])]
        role: String,
        /// Name, to tell it from others
        #[arg(long)]
        name: String,
        /// Narrow a worker's token (repeatable)
        #[arg(long)]
        scope: Vec<String>,
    },
    /// Revoke a token; its sessions end with it
    Revoke {
        /// Short id, as `tidegate token ls` shows it
        id: String,
    },
    /// Create a new admin token in the data folder; the old one is revoked on every instance
    ///
    /// Needs no token: the owner of the data folder owns the installation. The new token is in the
    /// file admin-token there. Works while the server runs and while it does not.
    ResetAdmin,
}

/// Adds the scopes of all services to the help of `token create`.
pub(crate) fn with_scopes(token: clap::Command, services: Services) -> clap::Command {
    let scopes: Vec<&str> = services.iter().flat_map(|service| service.scopes()).copied().collect();
    let help = format!("Narrow a worker's token: {} (repeatable)", scopes.join(", "));
    token.mut_subcommand("create", |create| create.mut_arg("scope", |scope| scope.help(help)))
}

/// Makes a new admin token. A running server owns the built-in store, so it is left to notice the
/// new file; any other store, or one without a server, is changed from here.
fn reset_admin(context: &Context<'_>) -> Outcome {
    let output = context.output;
    let config = context.load()?.config;
    let old = admin_token::read(&config.server.data).ok().and_then(admin_token::usable);
    let serves = client::ready(context).is_ok();
    let embedded = config.store_url().starts_with("embedded:");
    let secret = if embedded && serves {
        let secret = admin_token::replace(&config.server.data)?;
        wait_until_known(context, &config)?;
        secret
    } else {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::failed(format!("cannot start the runtime: {error}")))?;
        runtime.block_on(async {
            // The store first: without it the old token could not be revoked.
            let store = serve::open_store(&config).await?;
            let secret = admin_token::replace(&config.server.data)?;
            let auth = Auth::new(old.as_ref(), &serve::instance(&config), context.services);
            auth.replace_admin_token(&store, &secret).await.map_err(|error| {
                Failure::failed(format!("the old token may still work: {}", error.message()))
                    .next("tidegate token reset-admin   (once more)")
            })?;
            Ok::<_, Failure>(secret)
        })?
    };
    if output.json {
        return output.value(&json!({ "secret": secret.reveal() }));
    }
    output.note(&format!(
        "The new admin token, also in {}:",
        admin_token::path(&config.server.data).display()
    ));
    output.line(secret.reveal())
}

/// Waits until the running server takes the token that is now in the data folder.
fn wait_until_known(context: &Context<'_>, config: &Config) -> Outcome {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match Client::with_admin_token(context.global, config)?.get("/api/v1/me") {
            Ok(_) => return Ok(()),
            Err(failure) if failure.exit == Exit::Auth && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(100));
            }
            Err(failure) => return Err(failure),
        }
    }
}

pub(crate) fn run(verb: TokenVerb, context: &Context<'_>) -> Outcome {
    if matches!(verb, TokenVerb::ResetAdmin) {
        return reset_admin(context);
    }
    let client = Client::new(context)?;
    let output = context.output;
    match verb {
        TokenVerb::Ls => {
            let answer = client.get("/api/v1/tokens")?;
            if output.json {
                return output.value(&answer["items"]);
            }
            let rows: Vec<Vec<String>> = answer["items"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|token| {
                    let text = |name: &str| token[name].as_str().unwrap_or_default().to_owned();
                    let scopes = token["scopes"].as_array().into_iter().flatten();
                    let scopes: Vec<&str> = scopes.filter_map(Value::as_str).collect();
                    vec![text("id"), text("role"), text("name"), scopes.join(" ")]
                })
                .collect();
            output.table(&["ID", "ROLE", "NAME", "SCOPES"], &rows)
        }
        TokenVerb::Create { role, name, scope } => {
            let body = json!({ "role": role, "name": name, "scopes": scope });
            let answer = client.post("/api/v1/tokens", &body)?;
            if output.json {
                return output.value(&answer);
            }
            output.note("The secret, shown this once:");
            output.line(answer["secret"].as_str().unwrap_or_default())
        }
        TokenVerb::ResetAdmin => Ok(()), // above: it needs no client
        TokenVerb::Revoke { id } => {
            let answer = client.delete(&format!("/api/v1/tokens/{id}"))?;
            if output.json {
                return output.value(&answer);
            }
            output.note(&format!("revoked {}", answer["name"].as_str().unwrap_or(&id)));
            Ok(())
        }
    }
}
