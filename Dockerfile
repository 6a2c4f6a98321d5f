# An empty image with one static program in it. The program is built before (make image), so that nothing is fetched
# from anywhere; the folder it lies in is the build's context.
FROM scratch
ARG TARGETARCH
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="nfs-csi" \
      org.opencontainers.image.description="CSI driver for NFS: volumes are directories on an existing NFS export" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY nfs-csi-${TARGETARCH} /nfs-csi
ENTRYPOINT ["/nfs-csi"]
