#!/bin/bash
# Installs the driver into the cluster that kubectl speaks to. The manifests are in this file, so it needs no other one:
#
#   curl -skSL ADDRESS/install-driver.sh | bash -s master --
#
# usage: install-driver.sh [VERSION] [snapshot] [take-over]
#
#   VERSION     for the sake of those who give one: this file installs the version that it is of
#   snapshot    with volume snapshots: the sidecar for them, and the snapshot controller if the cluster has none
#   take-over   in place of csi-driver-nfs, where its own script installed that: pods keep their volumes
#
# NFS_CSI_IMAGE        the driver's image, in full (default: the one that is loaded into the nodes, localhost/nfs-csi:VERSION)
# NFS_CSI_BASE_REPO    the registry from which the sidecars' images come (default: registry.k8s.io)
# NFS_CSI_TIMEOUT      how long its pods may take, in seconds (default 300)
#
# It runs in bash 3.2, as macOS has it.
set -eu

driver=nfs.csi.k8s.io
version=none # deploy/make sets it
usage='usage: install-driver.sh [VERSION] [snapshot] [take-over]'

install() {
	word='' snapshot=no take_over=no
	for word; do
		case $word in
		-- | local | master | main | "$version") ;;
		snapshot | snapshots | local,snapshot | snapshot,local) snapshot=yes ;;
		take-over) take_over=yes ;;
		v[0-9]*) fail "this file installs $version: use the one of $word" ;;
		*) fail "unknown word \"$word\". $usage" ;;
		esac
	done
	command -v kubectl > /dev/null || fail "kubectl is missing: install it, and point it at your cluster"
	check_owner

	image=${NFS_CSI_IMAGE:-}
	if [ -z "$image" ]; then
		image=localhost/nfs-csi:$version
		echo "NFS_CSI_IMAGE is not set: the nodes must have $image (make image, and load its archive)."
	fi
	base=${NFS_CSI_BASE_REPO:-registry.k8s.io}
	base=${base%/}

	manifest=nfs_csi
	if [ "$snapshot" = yes ]; then
		manifest=nfs_csi_snapshot
		if kubectl get crd volumesnapshots.snapshot.storage.k8s.io > /dev/null 2>&1; then
			echo "The cluster has the snapshot API already: its snapshot controller is left as it is."
		else
			apply snapshot_controller
		fi
	fi
	apply "$manifest"

	timeout=${NFS_CSI_TIMEOUT:-300}
	for part in deployment/csi-nfs-controller daemonset/csi-nfs-node; do
		kubectl --namespace kube-system rollout status "$part" --timeout "${timeout}s" || {
			kubectl --namespace kube-system get pods -l 'app in (csi-nfs-controller,csi-nfs-node)' -o wide
			kubectl --namespace kube-system get events --field-selector type=Warning | tail -n 20
			fail "$part is not ready after $timeout s. If the events above say ErrImagePull or ImagePullBackOff, set
NFS_CSI_IMAGE to the name under which you pushed the driver's image, and NFS_CSI_BASE_REPO to your mirror of the sidecars'.
A pod that fails again and again says why in its log:
kubectl --namespace kube-system logs $part --all-containers"
		}
	done
	if [ "$take_over" = yes ]; then
		# What csi-driver-nfs was allowed to do, under names that this driver does not use.
		kubectl delete clusterrolebinding nfs-csi-provisioner-binding nfs-csi-resizer-role --ignore-not-found
		kubectl delete clusterrole nfs-external-provisioner-role nfs-external-resizer-role --ignore-not-found
	fi
	echo "The driver $driver is installed. Next: a StorageClass for your export (deploy/example/storageclass.yaml)."
}

# Refuses where another driver or helm has what this script is about to change.
check_owner() {
	# shellcheck disable=SC2016 # the variables are the template's
	# Of each object: helm's release and its namespace, the name label, and whether kubectl apply made it.
	look='{{with .metadata.annotations}}{{$a := .}}
{{with index $a "meta.helm.sh/release-name"}}helm {{.}} {{index $a "meta.helm.sh/release-namespace"}}{{end}}
{{if index $a "kubectl.kubernetes.io/last-applied-configuration"}}applied{{end}}{{end}}
{{with .metadata.labels}}{{with index . "app.kubernetes.io/name"}}name={{.}}{{end}}{{end}}'
	for object in "csidriver/$driver" deployment/csi-nfs-controller daemonset/csi-nfs-node; do
		if ! kubectl --namespace kube-system get "$object" > /dev/null 2>&1; then
			continue
		fi
		owner=$(kubectl --namespace kube-system get "$object" -o go-template="$look" | tr -s '\n' ' ')
		owner=${owner# }
		case $owner in
		helm\ *)
			owner=${owner#helm } release=${owner%% *} rest=${owner#* }
			fail "$object belongs to the helm release $release: upgrade that one, in place:
helm upgrade $release charts/nfs-csi --namespace ${rest%% *} --reset-then-reuse-values --set image.nfs.repository=…"
			;;
		*name=nfs-csi*) ;;
		*applied*)
			[ "$take_over" = yes ] || fail "$object is there, and was not installed by this script but by csi-driver-nfs's:
$(kubectl --namespace kube-system get "$object" -o go-template='{{with .spec.template}}{{range .spec.containers}}  {{.image}}
{{end}}{{end}}')
To put this driver in its place, run this again with take-over. Pods keep their volumes; claims, classes, snapshots and
PersistentVolumes stay. What cannot go back to csi-driver-nfs later: snapshots that this driver takes, and volumes with ids
that would have been longer than 128 bytes (uninstall-driver.sh --going-back lists them)."
			;;
		*) fail "$object is there, and neither this script nor kubectl apply made it: remove it first" ;;
		esac
	done
}

# Applies one of the manifests below, with the images that were asked for.
apply() {
	map=$(kubectl --namespace kube-system get configmap/csi-nfs-servers --ignore-not-found --output name)
	"$1" | if [ -n "$map" ]; then without_server_map; else cat; fi |
		sed -e "s|image: localhost/nfs-csi:.*|image: $image|" -e "s|image: registry.k8s.io/|image: $base/|" | kubectl apply -f -
}

# A manifest without its ConfigMap, which is the server map: one that is there is kept, since the empty one would have volumes
# mounted where their server was before.
without_server_map() {
	awk 'function flush() { if (object !~ /\nkind: ConfigMap\n/) printf "%s", object; object = "" }
		/^---$/ { flush() }
		{ object = object $0 "\n" }
		END { flush() }'
}

fail() {
	echo "install-driver.sh: $*" >&2
	exit 1
}

# MANIFESTS

# Standard input may be this file.
install "$@" < /dev/null
