//! gRPC: echo calls to a server in this process.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use bytes::Bytes;
use tokio::{net::TcpListener, sync::oneshot};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::task::TaskTracker;
use tonic::{
    Request,
    client::Grpc,
    codegen::http::uri::PathAndQuery,
    transport::{Channel, Endpoint, Server},
};

use super::{CALLERS, rows::INPUT};
use crate::raw_grpc::{RawCodec, RawHandler, RawService};

const CONNECTIONS: usize = 8;
const PATH: &str = "/limits.Echo/Echo";

/// Returns each message unchanged.
#[derive(Clone, Copy, Debug)]
struct Echo;

impl RawHandler for Echo {
    const NAME: &'static str = "limits.Echo";

    fn handle(&self, message: Bytes) -> Bytes {
        message
    }
}

pub(super) async fn measure(time: Duration) -> anyhow::Result<f64> {
    let (address, addressed) = oneshot::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    // Its own runtime, like a separate server.
    let server = thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new()?;
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            address.send(listener.local_addr()?).ok();
            let serving = Server::builder().add_service(RawService(Echo));
            let ended = async { drop(stopped.await) };
            anyhow::Ok(serving.serve_with_incoming_shutdown(TcpListenerStream::new(listener), ended).await?)
        })
    });
    let endpoint = format!("http://{}", addressed.await.context("the server did not start")?);
    let channels: Vec<Channel> = (0..CONNECTIONS)
        .map(|_| Ok(Endpoint::from_shared(endpoint.clone())?.tcp_nodelay(true).connect_lazy()))
        .collect::<anyhow::Result<_>>()?;
    let (tasks, begun) = (TaskTracker::new(), Instant::now());
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| tasks.spawn(call(channels[caller % CONNECTIONS].clone(), begun + time)))
        .collect();
    let mut calls = 0;
    for caller in callers {
        calls += caller.await??;
    }
    let rate = calls as f64 / begun.elapsed().as_secs_f64();
    drop((stop, channels));
    tokio::task::spawn_blocking(move || server.join())
        .await?
        .map_err(|_| anyhow::anyhow!("the server panicked"))??;
    Ok(rate)
}

async fn call(channel: Channel, until: Instant) -> anyhow::Result<u64> {
    let mut client = Grpc::new(channel);
    let mut calls = 0;
    while Instant::now() < until {
        client.ready().await?;
        let message = Request::new(Bytes::from_static(INPUT.as_bytes()));
        let answer = client.unary(message, PathAndQuery::from_static(PATH), RawCodec).await?;
        anyhow::ensure!(answer.into_inner().len() == INPUT.len(), "the echo differs from the message");
        calls += 1;
    }
    Ok(calls)
}
