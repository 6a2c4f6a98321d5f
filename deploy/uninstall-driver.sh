#!/bin/bash
# Removes what install-driver.sh has installed, and nothing else: what another driver or helm installed under the same names
# stays. Volumes' data, PersistentVolumes, the snapshot API and the snapshot controller, which other drivers may use, stay.
#
# usage: uninstall-driver.sh [VERSION] [--even-with-volumes] [--snapshot-controller] [--going-back]
#
#   --even-with-volumes     also while there are PersistentVolumes of the driver: their pods can then not be started or
#                           stopped until a driver of its name is installed again
#   --snapshot-controller   removes the snapshot controller too, if install-driver.sh brought it
#   --going-back            removes nothing, but lists what csi-driver-nfs could not use if it were installed again
#
# It runs in bash 3.2, as macOS has it.
set -eu

driver=nfs.csi.k8s.io
with_volumes=no controller=no going_back=no
# What was applied by the script. Helm's objects can have the same labels, for a release of that name.
labels=app.kubernetes.io/name=nfs-csi,app.kubernetes.io/instance=nfs-csi,app.kubernetes.io/managed-by!=Helm
of_controller=app.kubernetes.io/name=nfs-csi,app.kubernetes.io/instance=snapshot-controller,app.kubernetes.io/managed-by!=Helm

main() {
	for word; do
		case $word in
		--even-with-volumes) with_volumes=yes ;;
		--snapshot-controller) controller=yes ;;
		--going-back) going_back=yes ;;
		-- | local | snapshot | v[0-9]* | master | main) ;; # for the sake of those who repeat what they gave to install-driver.sh
		*) fail "unknown word \"$word\". usage: uninstall-driver.sh [--even-with-volumes] [--snapshot-controller] [--going-back]" ;;
		esac
	done
	command -v kubectl > /dev/null || fail "kubectl is missing: install it, and point it at your cluster"
	if [ "$going_back" = yes ]; then
		list_what_stays
	else
		uninstall
	fi
}

uninstall() {
	found=$(kubectl --namespace kube-system get deployment,daemonset,csidriver,clusterrole --selector "$labels" --output name)
	[ -n "$found" ] || fail "nothing here was installed by install-driver.sh, and nothing is removed. What helm installed,
helm removes (helm list --all-namespaces)."
	# Where another driver has taken its place, only its permissions are left.
	case $found in */csi-nfs-node* | *"/$driver"*) is_there=yes ;; *) is_there=no ;; esac
	if [ "$is_there$with_volumes" = yesno ]; then
		volumes=$(kubectl get pv -o "jsonpath={range .items[?(@.spec.csi.driver=='$driver')]}{.metadata.name} {end}")
		[ -z "$volumes" ] || fail "there are PersistentVolumes of $driver: $volumes
Without the driver their pods cannot be started or stopped. Delete them first, or say --even-with-volumes."
	fi
	map=$(server_map)
	# In an order that leaves no pod without its permissions or the server map.
	kubectl --namespace kube-system delete deployment,daemonset,poddisruptionbudget --selector "$labels" --ignore-not-found --wait
	kubectl --namespace kube-system delete configmap --selector "$labels" --ignore-not-found
	kubectl delete csidriver --selector "$labels" --ignore-not-found
	permissions "$labels"
	if [ "$controller" = yes ]; then
		kubectl --namespace kube-system delete deployment --selector "$of_controller" --ignore-not-found --wait
		permissions "$of_controller"
	fi
	echo "The driver $driver is removed. Data, PersistentVolumes and the snapshot API are as they were."
	if [ -n "$map" ]; then
		echo "The server map is removed too. A new install needs it before pods start (docs/servers.md):"
		echo "$map"
	fi
}

# The server map, if it has any servers.
server_map() {
	found_map=$(kubectl get configmap --all-namespaces --field-selector metadata.name=csi-nfs-servers \
		-o go-template='{{range .items}}{{index .data "servers.json"}}{{end}}')
	case $(echo "$found_map" | tr -d ' \n\t') in
	'' | '{"servers":{}}') ;;
	*) echo "$found_map" ;;
	esac
}

permissions() {
	kubectl --namespace kube-system delete serviceaccount,role,rolebinding --selector "$1" --ignore-not-found
	kubectl delete clusterrole,clusterrolebinding --selector "$1" --ignore-not-found
}

# What this driver made, or was asked for, that csi-driver-nfs does not read.
list_what_stays() {
	echo "What csi-driver-nfs could not use if it were installed again in place of nfs-csi:"
	echo
	echo "PersistentVolumes with an id that is this driver's alone (their data can be mounted by a PersistentVolume of your own):"
	kubectl get pv -o "jsonpath={range .items[?(@.spec.csi.driver=='$driver')]}{.metadata.name} {.spec.csi.volumeHandle}{'\n'}{end}" |
		sed -n 's|^\([^ ]*\) .*#\.nfs-csi/.*|  \1|p'
	echo
	echo "PersistentVolumes and StorageClasses of the servers in the server map, which it does not read (docs/servers.md):"
	server_map
	echo
	echo "Snapshots: it restores those that it took itself, from before nfs-csi was installed, and no other. There are:"
	if kubectl get crd volumesnapshotcontents.snapshot.storage.k8s.io > /dev/null 2>&1; then
		kubectl get volumesnapshotcontents -o "jsonpath={range .items[?(@.spec.driver=='$driver')]}  {.spec.volumeSnapshotRef.namespace}/{.spec.volumeSnapshotRef.name} of {.metadata.creationTimestamp}{'\n'}{end}"
	fi
	echo
	echo "StorageClasses with parameters that it refuses (no new volumes; the old ones stay):"
	# shellcheck disable=SC2016 # the variables are the template's
	kubectl get storageclass -o go-template='{{range .items}}{{$name := .metadata.name}}{{if eq .provisioner "'"$driver"'"}}{{range $key, $value := .parameters}}{{$name}} {{$key}}
{{end}}{{end}}{{end}}' | while read -r name key; do
		case $(echo "$key" | tr '[:upper:]' '[:lower:]') in
		server | share | subdir | ondelete | mountpermissions | csi.storage.k8s.io/*) ;;
		*) echo "  $name: $key" ;;
		esac
	done
	echo
	echo "What is in the trash (.nfs-csi/trash on the exports) is neither freed nor brought back by it: nfs-csi trash list."
}

fail() {
	echo "uninstall-driver.sh: $*" >&2
	exit 1
}

main "$@" < /dev/null
