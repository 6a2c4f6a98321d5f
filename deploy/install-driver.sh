#!/bin/bash
# Installs the driver into the cluster that kubectl speaks to.
#
# usage: install-driver.sh [VERSION] [local] [snapshot]
#
#   local      the manifests beside this script are used; without, they are fetched from $NFS_CSI_URL, the address of
#              this folder, in which VERSION stands for {version}
#   snapshot   with volume snapshots: the sidecar for them, and the snapshot controller if the cluster has none
#
# NFS_CSI_IMAGE        the driver's image, in full (default: nfs-csi:VERSION)
# NFS_CSI_BASE_REPO    the registry from which the sidecars' images come (default: none, their plain names)
# NFS_CSI_TIMEOUT      how long its pods may take, in seconds (default 300)
set -eu

install() {
	local version='' word source=fetch snapshot=no
	for word; do
		case $word in
		--) ;;
		local) source=here ;;
		snapshot | snapshots) snapshot=yes ;;
		local,snapshot | snapshot,local) source=here snapshot=yes ;;
		v[0-9]* | master | main) version=$word ;;
		*) fail "what is meant by \"$word\"? usage: install-driver.sh [VERSION] [local] [snapshot]" ;;
		esac
	done
	command -v kubectl > /dev/null || fail "kubectl is missing: install it, and point it at your cluster"

	local manifest=nfs-csi.yaml
	if [ "$snapshot" = yes ]; then
		manifest=nfs-csi-snapshot.yaml
		if kubectl get crd volumesnapshots.snapshot.storage.k8s.io > /dev/null 2>&1; then
			echo "The cluster has the snapshot API already: its snapshot controller is left as it is."
		else
			apply snapshot-controller.yaml
		fi
	fi
	apply "$manifest"

	local timeout=${NFS_CSI_TIMEOUT:-300} part
	for part in deployment/csi-nfs-controller daemonset/csi-nfs-node; do
		kubectl --namespace kube-system rollout status "$part" --timeout "${timeout}s" || {
			kubectl --namespace kube-system get pods -l 'app in (csi-nfs-controller,csi-nfs-node)' -o wide
			kubectl --namespace kube-system get events --field-selector type=Warning | tail -n 20
			fail "$part is not ready after $timeout s. ErrImagePull or ImagePullBackOff above: name the images'
registry with NFS_CSI_IMAGE and NFS_CSI_BASE_REPO. A pod that ends again and again says why in its log:
kubectl --namespace kube-system logs $part --all-containers"
		}
	done
	echo "The driver nfs.csi.k8s.io is installed. Next: a StorageClass for your export (deploy/example/storageclass.yaml)."
}

# apply FILE: a manifest, with the images that were asked for.
apply() {
	manifest "$1" | images | kubectl apply -f -
}

manifest() {
	if [ "$source" = here ]; then
		cat "$(dirname "${BASH_SOURCE[0]}")/$1"
		return
	fi
	local url=${NFS_CSI_URL:-}
	[ -n "$url" ] || fail "say where the manifests are: NFS_CSI_URL=https://…/{version}/deploy, or use them from a
checkout: install-driver.sh $version local"
	curl -sSfL "${url//\{version\}/$version}/$1"
}

images() {
	local edit=()
	if [ -n "${NFS_CSI_IMAGE:-}" ]; then
		edit+=(-e "s|image: nfs-csi:.*|image: $NFS_CSI_IMAGE|")
	elif [ -n "$version" ]; then
		edit+=(-e "s|image: nfs-csi:.*|image: nfs-csi:$version|")
	fi
	[ -z "${NFS_CSI_BASE_REPO:-}" ] || edit+=(-e "s|image: sig-storage/|image: ${NFS_CSI_BASE_REPO%/}/sig-storage/|")
	sed "${edit[@]}" -e ''
}

fail() {
	echo "install-driver.sh: $*" >&2
	exit 1
}

set -o pipefail
install "$@"
