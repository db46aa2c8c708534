//! Calls of a listener on the built-in store, besides running commands.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::{Buffers, Engine, Error, OutputLimits, SessionId, Traffic};

use super::{CANNOT_LISTEN, Embedded, Listener, LockedBatch, busy::Listeners};

/// Has listeners carry out the settings that are theirs.
pub(super) fn follow_settings(engine: &mut Engine, listeners: &Listeners) {
    let listeners = Arc::clone(listeners);
    engine.on_setting(move |name, value| {
        if name != "port" {
            return Ok(());
        }
        let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        let listener = listeners.lock().first().cloned();
        match (listener, number) {
            (Some(listener), Some(number)) => listener.listen(number),
            _ => Err(CANNOT_LISTEN.to_owned()),
        }
    });
}

impl Embedded {
    /// Tells a listener whenever more of the log has reached the disk.
    pub fn add_listener(&self, listener: Arc<dyn Listener>) {
        self.shared.listeners.lock().push(listener);
    }

    /// The listener has ended.
    pub fn remove_listener(&self, listener: &Arc<dyn Listener>) {
        self.shared.listeners.lock().retain(|other| !Arc::ptr_eq(other, listener));
    }

    /// Clients connect at this port, as INFO and CONFIG shall show it.
    pub fn show_port(&self, number: u16) {
        self.shared.lock().engine.show_port(number);
    }

    /// Makes or changes a user by the rules of `ACL SETUSER`.
    ///
    /// # Errors
    /// The first rule that is wrong; nothing is changed then.
    pub fn set_user(&self, name: &str, rules: &[&str]) -> Result<(), Error> {
        self.shared.lock().engine.set_user(name, rules)
    }

    /// Names the user whose password `AUTH` without a name means while the default user needs none.
    pub fn set_owner(&self, name: &str) {
        self.shared.lock().engine.set_owner(name);
    }

    /// Returns the counters of traffic that INFO shows, for listeners to count in.
    pub fn traffic(&self) -> Arc<Traffic> {
        self.shared.lock().engine.traffic()
    }

    /// Returns the output buffer limits by client class, for listeners to enforce.
    pub fn output_limits(&self) -> OutputLimits {
        *self.shared.output_limits.lock()
    }

    /// Returns `client-query-buffer-limit` in bytes, for listeners to enforce.
    pub fn query_buffer_max(&self) -> usize {
        self.shared.query_buffer_max.load(Ordering::Relaxed)
    }

    /// Clients that connect from now on must show this password; none if empty.
    pub fn set_password(&self, password: &str) {
        self.shared.lock().engine.set_password(password.as_bytes());
    }
}

impl LockedBatch<'_> {
    /// Tells what the connection of a session holds: CLIENT LIST shows it, and it counts as memory
    /// in use.
    pub fn show_buffers(&mut self, session: SessionId, buffers: Buffers) {
        self.state.engine.show_buffers(session, buffers);
    }

    /// Wrong passwords shown so far, by all clients.
    pub fn wrong_passwords(&self) -> u64 {
        self.state.engine.wrong_passwords()
    }

    /// The protocol a session speaks, 2 or 3.
    pub fn protocol(&self, session: SessionId) -> u8 {
        self.state.engine.protocol(session)
    }

    /// Has the session shown its password, or needs none?
    pub fn is_authenticated(&self, session: SessionId) -> bool {
        self.state.engine.is_authenticated(session)
    }

    /// Is the session over once its replies are sent? Nothing more of it may run.
    pub fn is_closing(&self, session: SessionId) -> bool {
        self.state.engine.is_closing(session)
    }

    /// Does the session listen to channels?
    pub fn is_subscribed(&self, session: SessionId) -> bool {
        self.state.engine.is_subscribed(session)
    }
}
