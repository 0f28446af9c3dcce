//! Transcripts with stock clients; the scripts beside this file are the tests. Here is what the tests in Rust share.

use integration::process::Server;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// The administrator's client of a server that was started, from the kubeconfig it wrote.
pub async fn administrator(server: &Server) -> Client {
    let kubeconfig =
        Kubeconfig::read_from(server.data_dir().join("admin.kubeconfig")).expect("a kubeconfig");
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .expect("a config");
    // What a server refuses for now (429) is an answer, too.
    config.default_retry = false;
    Client::try_from(config).expect("a client")
}
