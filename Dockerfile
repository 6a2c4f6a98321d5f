# An empty image with one static program in it.
#
# `docker build .` compiles the program in an image with a Rust compiler. `make image` has compiled it already (--target
# built): so the next build is quick, and no image is fetched.
ARG RUST=rust:1.95-slim-bookworm

FROM ${RUST} AS compiled
WORKDIR /source
COPY . .
# rust-toolchain.toml asks for tools that no build needs.
RUN rm -f rust-toolchain.toml \
 && RUSTFLAGS='-C target-feature=+crt-static' cargo build --release --locked --target "$(uname -m)-unknown-linux-gnu" \
 && cp "target/$(uname -m)-unknown-linux-gnu/release/nfs-csi" /nfs-csi

FROM scratch AS empty
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="nfs-csi" \
      org.opencontainers.image.description="CSI driver for NFS: volumes are directories on an existing NFS export" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENTRYPOINT ["/nfs-csi"]

FROM empty AS built
ARG TARGETARCH
COPY nfs-csi-${TARGETARCH} /nfs-csi

FROM empty
COPY --from=compiled /nfs-csi /nfs-csi
