//! Set-up of devices: names of the encrypted endpoints, and a configuration profile for Apple devices.

use std::net::IpAddr;

/// The encrypted endpoints of this server, as far as they are set up.
#[derive(Debug, Clone, Default)]
pub(crate) struct Endpoints {
    /// Name in the certificate (`dns.tls_name`).
    pub(crate) name: Option<String>,
    pub(crate) https_port: Option<u16>,
    pub(crate) tls_port: Option<u16>,
}

impl Endpoints {
    /// Returns the URL for DNS over HTTPS.
    pub(crate) fn https_url(&self, client: Option<&str>) -> Option<String> {
        let (name, port) = (self.name.as_deref()?, self.https_port?);
        let port = if port == 443 { String::new() } else { format!(":{port}") };
        let client = client.map_or_else(String::new, |id| format!("/{id}"));
        Some(format!("https://{name}{port}/dns-query{client}"))
    }

    /// Returns the name for DNS over TLS, which Android calls private DNS. A client's id is its first
    /// label.
    pub(crate) fn tls_host(&self, client: Option<&str>) -> Option<String> {
        let (name, _) = (self.name.as_deref()?, self.tls_port?);
        Some(match client {
            Some(id) => format!("{id}.{name}"),
            None => name.to_owned(),
        })
    }

    /// Tells why a device cannot be set up for a protocol; none if it can.
    pub(crate) fn missing(&self, needs_tls: bool) -> Option<&'static str> {
        match (self.name.is_some(), needs_tls, self.tls_port) {
            (false, ..) => Some(
                "there is no encrypted endpoint: set http.tls_cert, http.tls_key and dns.tls_name to the name in the certificate",
            ),
            (true, true, None) => {
                Some("DNS over TLS is off: set dns.tls_listen, usually to 0.0.0.0:853")
            }
            _ => None,
        }
    }
}

/// A profile for Apple devices.
#[derive(Debug, Clone)]
pub(crate) struct AppleProfile {
    /// DNS over TLS instead of HTTPS.
    pub(crate) over_tls: bool,
    /// Id of the client.
    pub(crate) client: Option<String>,
    /// Addresses of the server, so that its name need not be looked up elsewhere first.
    pub(crate) addresses: Vec<IpAddr>,
    /// Wi-Fi networks on which the profile does nothing.
    pub(crate) wifi_exceptions: Vec<String>,
}

impl AppleProfile {
    /// Writes the profile; none if there is no endpoint for it.
    pub(crate) fn write(&self, endpoints: &Endpoints, uuids: [&str; 2]) -> Option<String> {
        let client = self.client.as_deref();
        let (protocol, key, value) = match self.over_tls {
            true => ("TLS", "ServerName", endpoints.tls_host(client)?),
            false => ("HTTPS", "ServerURL", endpoints.https_url(client)?),
        };
        let name = endpoints.name.as_deref()?;
        let identifier = match client {
            Some(id) => format!("tidegate.dns.{name}.{id}"),
            None => format!("tidegate.dns.{name}"),
        };
        let strings = |key: &str, values: Vec<String>| match values.is_empty() {
            true => String::new(),
            false => {
                let items: String = values
                    .iter()
                    .map(|value| format!("\t\t\t\t\t<string>{}</string>\n", escape(value)))
                    .collect();
                format!("\t\t\t\t<key>{key}</key>\n\t\t\t\t<array>\n{items}\t\t\t\t</array>\n")
            }
        };
        let addresses = self.addresses.iter().map(ToString::to_string).collect();
        let rules = match self.wifi_exceptions.is_empty() {
            true => String::new(),
            false => {
                let exceptions: String = self
                    .wifi_exceptions
                    .iter()
                    .map(|ssid| format!("\t\t\t\t\t\t<string>{}</string>\n", escape(ssid)))
                    .collect();
                format!(
                    "\t\t\t<key>OnDemandRules</key>\n\t\t\t<array>\n\t\t\t\t<dict>\n\
                     \t\t\t\t\t<key>Action</key>\n\t\t\t\t\t<string>Disconnect</string>\n\
                     \t\t\t\t\t<key>SSIDMatch</key>\n\t\t\t\t\t<array>\n{exceptions}\t\t\t\t\t</array>\n\
                     \t\t\t\t</dict>\n\t\t\t\t<dict>\n\t\t\t\t\t<key>Action</key>\n\
                     \t\t\t\t\t<string>Connect</string>\n\t\t\t\t</dict>\n\t\t\t</array>\n"
                )
            }
        };
        Some(format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\" \"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">\n\
             <plist version=\"1.0\">\n<dict>\n\
             \t<key>PayloadContent</key>\n\t<array>\n\t\t<dict>\n\
             \t\t\t<key>DNSSettings</key>\n\t\t\t<dict>\n\
             \t\t\t\t<key>DNSProtocol</key>\n\t\t\t\t<string>{protocol}</string>\n\
             {addresses}\
             \t\t\t\t<key>{key}</key>\n\t\t\t\t<string>{value}</string>\n\
             \t\t\t</dict>\n\
             {rules}\
             \t\t\t<key>PayloadDisplayName</key>\n\t\t\t<string>{shown}</string>\n\
             \t\t\t<key>PayloadIdentifier</key>\n\t\t\t<string>{identifier}.settings</string>\n\
             \t\t\t<key>PayloadType</key>\n\t\t\t<string>com.apple.dnsSettings.managed</string>\n\
             \t\t\t<key>PayloadUUID</key>\n\t\t\t<string>{inner}</string>\n\
             \t\t\t<key>PayloadVersion</key>\n\t\t\t<integer>1</integer>\n\
             \t\t</dict>\n\t</array>\n\
             \t<key>PayloadDescription</key>\n\t<string>Queries go to {shown} over {protocol}.</string>\n\
             \t<key>PayloadDisplayName</key>\n\t<string>DNS: {shown}</string>\n\
             \t<key>PayloadIdentifier</key>\n\t<string>{identifier}</string>\n\
             \t<key>PayloadRemovalDisallowed</key>\n\t<false/>\n\
             \t<key>PayloadType</key>\n\t<string>Configuration</string>\n\
             \t<key>PayloadUUID</key>\n\t<string>{outer}</string>\n\
             \t<key>PayloadVersion</key>\n\t<integer>1</integer>\n\
             </dict>\n</plist>\n",
            addresses = strings("ServerAddresses", addresses),
            value = escape(&value),
            shown = escape(name),
            identifier = escape(&identifier),
            inner = uuids[0],
            outer = uuids[1],
        ))
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Draws a text as a QR code.
pub(crate) fn qr_code(text: &str) -> Option<maud::Markup> {
    web::qr::svg(text, "Code to photograph")
}

/// Draws a random UUID (version 4).
pub(crate) fn draw_uuid() -> Option<String> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).ok()?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02X}")).collect();
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    Some(format!(
        "{}-{}-{}-{}-{}",
        part(0, 8),
        part(8, 12),
        part(12, 16),
        part(16, 20),
        part(20, 32)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_names_server_addresses_and_exceptions() {
        let endpoints = Endpoints {
            name: Some("dns.example".to_owned()),
            https_port: Some(8443),
            tls_port: Some(853),
        };
        let profile = AppleProfile {
            over_tls: false,
            client: Some("tablet".to_owned()),
            addresses: vec!["192.0.2.53".parse().unwrap()],
            wifi_exceptions: vec!["Home & <Garden>".to_owned()],
        };
        let text = profile.write(&endpoints, ["A", "B"]).unwrap();
        for part in [
            "<string>HTTPS</string>",
            "<string>https://dns.example:8443/dns-query/tablet</string>",
            "<string>192.0.2.53</string>",
            "<string>Home &amp; &lt;Garden&gt;</string>",
            "<string>tidegate.dns.dns.example.tablet</string>",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        let over_tls = AppleProfile { over_tls: true, wifi_exceptions: vec![], ..profile };
        let text = over_tls.write(&endpoints, ["A", "B"]).unwrap();
        assert!(text.contains("<string>tablet.dns.example</string>") && !text.contains("OnDemand"));
        assert_eq!(over_tls.write(&Endpoints::default(), ["A", "B"]), None);
        let uuid = draw_uuid().unwrap();
        assert_eq!((uuid.len(), uuid.as_bytes()[14]), (36, b'4'));
    }
}
