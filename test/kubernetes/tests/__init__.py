"""The driver on a real Kubernetes. Runs in the guest, when the cluster is ready: `make test-kubernetes`."""
