//! TLS for `https` probes, by rustls.
//!
//! A certificate must be good for the name asked for, signed by an authority of
//! `ca_file` or of the system. With `verify = false` any certificate will do;
//! what is left is that the server speaks TLS and has the key of what it shows.

use crate::config::TlsProbe;
use anyhow::{Context as _, Result, bail};
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};
use std::{net::SocketAddr, path::Path, sync::Arc};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

/// What all connections of a service have in common.
pub(super) struct Connector {
    connector: TlsConnector,
    /// `None`: the backend's address.
    name: Option<ServerName<'static>>,
}

impl Connector {
    pub(super) fn new(tls: &TlsProbe, host: Option<&str>) -> Result<Self> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .context("no TLS version")?;
        let config = if tls.verify {
            builder.with_root_certificates(roots(tls.ca_file.as_deref())?)
        } else {
            let any = Arc::new(AnyCertificate { provider });
            builder.dangerous().with_custom_certificate_verifier(any)
        };
        let name = tls.server_name.as_deref().or(host);
        let name = name
            .map(|name| {
                let name = name.split_once(':').map_or(name, |(name, _)| name);
                ServerName::try_from(name.to_owned())
                    .with_context(|| format!("{name} cannot be the name of a server"))
            })
            .transpose()?;
        Ok(Self {
            connector: TlsConnector::from(Arc::new(config.with_no_client_auth())),
            name,
        })
    }

    pub(super) async fn connect(
        &self,
        to: SocketAddr,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => ServerName::IpAddress(to.ip().into()),
        };
        self.connector
            .connect(name, stream)
            .await
            .map_err(|error| anyhow::anyhow!("TLS: {error}"))
    }
}

fn roots(file: Option<&Path>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let Some(file) = file else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            bail!("the system has no certificates of authorities; set `ca_file`");
        }
        return Ok(roots);
    };
    let certificates = CertificateDer::pem_file_iter(file)
        .with_context(|| format!("cannot read {}", file.display()))?;
    for certificate in certificates {
        let certificate = certificate.with_context(|| format!("{} is not PEM", file.display()))?;
        roots
            .add(certificate)
            .with_context(|| format!("{}: not a certificate", file.display()))?;
    }
    if roots.is_empty() {
        bail!("{} holds no certificate", file.display());
    }
    Ok(roots)
}

/// Takes any certificate and still wants the signature made with its key.
#[derive(Debug)]
struct AnyCertificate {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}
