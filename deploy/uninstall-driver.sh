#!/bin/bash
# Removes what install-driver.sh has installed. Volumes' data, PersistentVolumes, the snapshot API and the snapshot
# controller, which other drivers may use, stay.
#
# usage: uninstall-driver.sh [VERSION] [local] [--even-with-volumes]
#
# While there are PersistentVolumes of the driver it refuses: their pods could not be started or stopped any more.
# --even-with-volumes does it all the same (to put another driver of the same name in its place, say).
set -eu
driver=nfs.csi.k8s.io
with_volumes=no
for word; do
	case $word in
	--even-with-volumes) with_volumes=yes ;;
	-- | local | snapshot | v[0-9]* | master | main) ;; # for the sake of those who give what they gave to install-driver.sh
	*)
		echo "uninstall-driver.sh: what is meant by \"$word\"? usage: uninstall-driver.sh [--even-with-volumes]" >&2
		exit 1
		;;
	esac
done
if [ "$with_volumes" = no ]; then
	volumes=$(kubectl get pv -o "jsonpath={range .items[?(@.spec.csi.driver=='$driver')]}{.metadata.name} {end}")
	if [ -n "$volumes" ]; then
		echo "uninstall-driver.sh: there are PersistentVolumes of $driver: $volumes
Without the driver their pods cannot be started or stopped. Delete them first, or say --even-with-volumes." >&2
		exit 1
	fi
fi
# What the manifests contain, whichever of them it was; in an order that leaves nobody without permissions.
labels=app.kubernetes.io/name=nfs-csi,app.kubernetes.io/instance=nfs-csi
kubectl --namespace kube-system delete deployment,daemonset,poddisruptionbudget --selector "$labels" --ignore-not-found --wait
kubectl delete csidriver "$driver" --ignore-not-found
kubectl --namespace kube-system delete serviceaccount,role,rolebinding --selector "$labels" --ignore-not-found
kubectl delete clusterrole,clusterrolebinding --selector "$labels" --ignore-not-found
echo "The driver $driver is removed. Data, PersistentVolumes and the snapshot API are as they were."
