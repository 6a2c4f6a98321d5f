//! The messages and services of `proto/`, as tonic and prost generate them: CSI here, and the kubelet's registration of
//! plugins in a module of its own.
#![allow(missing_docs, clippy::pedantic, reason = "generated code")]

tonic::include_proto!("csi.v1");

/// Registration of plugins with the kubelet, version 1.
pub mod pluginregistration {
    tonic::include_proto!("pluginregistration");
}
