//! The messages and services of `proto/csi.proto`, as tonic and prost generate them.
#![allow(missing_docs, clippy::pedantic, reason = "generated code")]

tonic::include_proto!("csi.v1");
