//! The client: channels, the API key, and the address of the stream service.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use remuda_domain::{Code, Error, error::Result, limits};
use remuda_proto::v1::{self, stream_service_client::StreamServiceClient};
use tokio::sync::OnceCell;
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::Channel,
};

use crate::{ClientOptions, connection_error, retry::Retry};

/// A client of one server. Clones are cheap and share the connection.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    options: ClientOptions,
    auth: Auth,
    main: Peer,
    stream: OnceCell<Peer>,
    /// Whether any server has responded yet.
    reached: AtomicBool,
}

/// An address and the channel to it.
#[derive(Clone)]
pub(crate) struct Peer {
    pub endpoint: String,
    pub channel: Channel,
}

/// A channel that adds the API key, and the trace context, to every request.
pub(crate) type Authorized = InterceptedService<Channel, Auth>;

#[derive(Clone)]
pub(crate) struct Auth {
    authorization: Option<MetadataValue<Ascii>>,
    traceparent: Option<MetadataValue<Ascii>>,
}

impl Interceptor for Auth {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let headers = [("authorization", &self.authorization), ("traceparent", &self.traceparent)];
        for (name, value) in headers {
            if let Some(value) = value {
                request.metadata_mut().insert(name, value.clone());
            }
        }
        Ok(request)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("endpoint", &self.0.main.endpoint).finish_non_exhaustive()
    }
}

impl Client {
    /// Creates a client. It connects with the first call, so a wrong address is reported there.
    ///
    /// Must be called inside a tokio runtime.
    pub fn connect(options: ClientOptions) -> Result<Self> {
        let channel = options.channel("endpoint", &options.endpoint)?;
        let main = Peer { endpoint: options.endpoint.clone(), channel };
        let stream = match &options.stream_endpoint {
            Some(url) => {
                let channel = options.channel("stream_endpoint", url)?;
                OnceCell::new_with(Some(Peer { endpoint: url.clone(), channel }))
            }
            None => OnceCell::new(),
        };
        let auth = Auth { authorization: options.authorization()?, traceparent: options.traceparent() };
        Ok(Self(Arc::new(Inner { options, auth, main, stream, reached: AtomicBool::new(false) })))
    }

    #[must_use]
    pub fn options(&self) -> &ClientOptions {
        &self.0.options
    }

    pub(crate) fn main(&self) -> &Peer {
        &self.0.main
    }

    pub(crate) fn auth(&self) -> Auth {
        self.0.auth.clone()
    }

    pub(crate) fn retry(&self) -> Retry {
        Retry::new(self.0.options.give_up_after)
    }

    /// Whether a failed call is worth retrying: the server has responded before.
    pub(crate) fn was_reached(&self) -> bool {
        self.0.reached.load(Ordering::Relaxed)
    }

    /// Converts the response of `peer` into a result, and records that a server responded.
    pub(crate) fn convert<T>(&self, peer: &Peer, response: Result<T, Status>) -> Result<T> {
        let failure = match response {
            Ok(value) => {
                self.0.reached.store(true, Ordering::Relaxed);
                return Ok(value);
            }
            Err(status) => connection_error::failure(&peer.endpoint, status),
        };
        if failure.responded {
            self.0.reached.store(true, Ordering::Relaxed);
        }
        Err(failure.error)
    }

    /// The address of `StreamService`: as configured, else as reported by the server.
    pub(crate) async fn stream_peer(&self) -> Result<Peer> {
        self.0.stream.get_or_try_init(|| self.ask_stream_peer()).await.cloned()
    }

    async fn ask_stream_peer(&self) -> Result<Peer> {
        let url = match self.get_server_info(v1::GetServerInfoRequest {}).await {
            Ok(info) => info.stream_endpoint,
            Err(error) if error.code() == Code::Unimplemented => String::new(),
            Err(error) => return Err(error),
        };
        if url.is_empty() {
            return Ok(self.main().clone());
        }
        // The key was meant for an encrypted connection: a server's response must not move it to an unencrypted one.
        if self.0.auth.authorization.is_some()
            && self.main().endpoint.starts_with("https:")
            && !url.starts_with("https:")
        {
            return Err(Error::invalid(
                "stream_endpoint",
                "the server names an unencrypted stream endpoint; set the stream endpoint to allow it",
            ));
        }
        let channel = self.0.options.channel("stream_endpoint", &url)?;
        Ok(Peer { endpoint: url, channel })
    }

    pub(crate) fn stream_client(&self, peer: &Peer) -> StreamServiceClient<Authorized> {
        StreamServiceClient::with_interceptor(peer.channel.clone(), self.auth())
            .max_decoding_message_size(limits::MAX_MESSAGE_BYTES)
            .max_encoding_message_size(limits::MAX_MESSAGE_BYTES)
    }
}
