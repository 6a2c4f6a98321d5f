//! Compiles `proto/` with protox, so that no protoc is needed to build the driver.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["proto/csi.proto", "proto/pluginregistration.proto"], ["proto"])?;
    // Clients (the tests, the demo) bring their own connection: no transport is generated.
    tonic_prost_build::configure().build_transport(false).generate_default_stubs(true).compile_fds(files)?;
    Ok(())
}
