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
version=v0.1.0
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

# Made by deploy/make from install-driver.in.sh and the manifests: do not edit.

nfs_csi() {
	cat << "MANIFEST"
# Made from charts/nfs-csi by deploy/make: do not edit.
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: csi-nfs-controller-sa
  namespace: kube-system
  labels:
    app.kubernetes.io/instance: nfs-csi
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: csi-nfs-node-sa
  namespace: kube-system
  labels:
    app.kubernetes.io/instance: nfs-csi
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: csi-nfs-controller-provisioner
  labels:
    app.kubernetes.io/instance: nfs-csi
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
rules:
  - {apiGroups: [""], resources: [persistentvolumes], verbs: [get, list, watch, create, patch, delete]}
  # update: the finalizer on a claim that is being cloned.
  - {apiGroups: [""], resources: [persistentvolumeclaims], verbs: [get, list, watch, update]}
  - {apiGroups: [storage.k8s.io], resources: [storageclasses, volumeattributesclasses], verbs: [get, list, watch]}
  # The node that the scheduler chose for a claim that waits for its first consumer.
  - {apiGroups: [""], resources: [nodes], verbs: [get]}
  # Those that a class names: their namespaces are not known beforehand.
  - {apiGroups: [""], resources: [secrets], verbs: [get]}
  - {apiGroups: [""], resources: [events], verbs: [create, update, patch, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: csi-nfs-controller-resizer
  labels:
    app.kubernetes.io/instance: nfs-csi
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
rules:
  - {apiGroups: [""], resources: [persistentvolumes], verbs: [get, list, watch, patch]}
  - {apiGroups: [""], resources: [persistentvolumeclaims], verbs: [get, list, watch]}
  - {apiGroups: [""], resources: [persistentvolumeclaims/status], verbs: [patch]}
  - {apiGroups: [storage.k8s.io], resources: [volumeattributesclasses], verbs: [get, list, watch]}
  # Those that a class names: their namespaces are not known beforehand.
  - {apiGroups: [""], resources: [secrets], verbs: [get]}
  - {apiGroups: [""], resources: [events], verbs: [create, update, patch, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: csi-nfs-controller-provisioner
  labels:
    app.kubernetes.io/instance: nfs-csi
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
subjects:
  - kind: ServiceAccount
    name: csi-nfs-controller-sa
    namespace: kube-system
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: csi-nfs-controller-provisioner
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: csi-nfs-controller-resizer
  labels:
    app.kubernetes.io/instance: nfs-csi
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
subjects:
  - kind: ServiceAccount
    name: csi-nfs-controller-sa
    namespace: kube-system
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: csi-nfs-controller-resizer
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: csi-nfs-controller-leader
  namespace: kube-system
  labels:
    app.kubernetes.io/instance: nfs-csi
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
rules:
  - {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, create, update, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: csi-nfs-controller-leader
  namespace: kube-system
  labels:
    app.kubernetes.io/instance: nfs-csi
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
subjects:
  - kind: ServiceAccount
    name: csi-nfs-controller-sa
    namespace: kube-system
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: csi-nfs-controller-leader
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata:
  name: nfs.csi.k8s.io
  labels:
    app.kubernetes.io/instance: nfs-csi
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
spec:
  attachRequired: false
  # Tells the driver that a volume is written in a pod's specification.
  podInfoOnMount: false
  storageCapacity: false
  fsGroupPolicy: File
  volumeLifecycleModes:
    - Persistent
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: csi-nfs-servers
  namespace: kube-system
  labels:
    app.kubernetes.io/instance: nfs-csi
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
data:
  servers.json: |
    {
      "servers": {}
    }
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: csi-nfs-controller
  namespace: kube-system
  labels:
    app: csi-nfs-controller
    app.kubernetes.io/instance: nfs-csi
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
spec:
  replicas: 1
  revisionHistoryLimit: 10
  selector:
    matchLabels:
      app: csi-nfs-controller
  minReadySeconds: 0
  strategy:
    type: Recreate
  template:
    metadata:
      labels:
        app: csi-nfs-controller
        app.kubernetes.io/instance: nfs-csi
        app.kubernetes.io/name: nfs-csi
    spec:
      serviceAccountName: csi-nfs-controller-sa
      # The sidecars have a token of their own below; the driver asks nothing of the API server.
      automountServiceAccountToken: false
      priorityClassName: "system-cluster-critical"
      hostNetwork: true
      dnsPolicy: ClusterFirstWithHostNet
      securityContext:
        fsGroup: 65532
        seccompProfile:
          type: RuntimeDefault
      affinity:
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
          - podAffinityTerm:
              labelSelector:
                matchLabels:
                  app: csi-nfs-controller
              topologyKey: kubernetes.io/hostname
            weight: 100
      nodeSelector:
        kubernetes.io/os: linux
      tolerations:
        - effect: NoSchedule
          key: node-role.kubernetes.io/master
          operator: Exists
        - effect: NoSchedule
          key: node-role.kubernetes.io/controlplane
          operator: Exists
        - effect: NoSchedule
          key: node-role.kubernetes.io/control-plane
          operator: Exists
        - effect: NoSchedule
          key: CriticalAddonsOnly
          operator: Exists
      containers:
        - name: nfs
          image: localhost/nfs-csi:v0.1.0
          imagePullPolicy: IfNotPresent
          args:
            - controller
            - --endpoint=unix:///csi/csi.sock
            - --driver-name=nfs.csi.k8s.io
            - --mount-permissions=0
            - --default-ondelete-policy=delete
            - --trash-retention=0
            - --working-mount-dir=/tmp
            - --log-level=info
            - --log-format=text
            - --metrics-address=:29652
          env:
            # Where the driver's own commands mount an export (nfs-csi trash).
            - {name: TMPDIR, value: /tmp}
          ports:
            - name: metrics
              containerPort: 29652
          livenessProbe:
            httpGet:
              path: /healthz
              port: metrics
            failureThreshold: 5
            initialDelaySeconds: 10
            periodSeconds: 20
            timeoutSeconds: 10
          readinessProbe:
            httpGet:
              path: /readyz
              port: metrics
            failureThreshold: 3
            periodSeconds: 5
            timeoutSeconds: 5
          # Not privileged: to mount exports (and be let to by AppArmor), and to keep owners, modes and special files.
          securityContext:
            allowPrivilegeEscalation: true
            appArmorProfile:
              type: Unconfined
            capabilities:
              add:
              - SYS_ADMIN
              - CHOWN
              - DAC_OVERRIDE
              - DAC_READ_SEARCH
              - FOWNER
              - FSETID
              - MKNOD
              drop:
              - ALL
            readOnlyRootFilesystem: true
          resources:
            limits:
              memory: 400Mi
            requests:
              cpu: 10m
              memory: 20Mi
          volumeMounts:
            - {name: csi, mountPath: /csi}
            - {name: exports, mountPath: /tmp}
            - {name: servers, mountPath: /etc/nfs-csi, readOnly: true}
        - name: csi-provisioner
          image: registry.k8s.io/sig-storage/csi-provisioner:v6.3.0
          imagePullPolicy: IfNotPresent
          args:
            - --csi-address=/csi/csi.sock
            - --v=2
            - --leader-election
            - --leader-election-namespace=kube-system
            - --kube-api-qps=100
            - --kube-api-burst=200
            - --timeout=1200s
            - --extra-create-metadata=true
            - --worker-threads=100
            # Shorter than the driver's --abandoned-after (15m), which ends a clone that is not asked for again.
            - --retry-interval-max=1m
          securityContext:
            allowPrivilegeEscalation: false
            capabilities:
              drop:
              - ALL
            readOnlyRootFilesystem: true
            runAsGroup: 65532
            runAsNonRoot: true
            runAsUser: 65532
          resources:
            limits:
              memory: 400Mi
            requests:
              cpu: 10m
              memory: 20Mi
          volumeMounts:
            - {name: csi, mountPath: /csi}
            - {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
        # --handle-volume-inuse-error=false: the volume grows while pods use it.
        - name: csi-resizer
          image: registry.k8s.io/sig-storage/csi-resizer:v2.2.0
          imagePullPolicy: IfNotPresent
          args:
            - --csi-address=/csi/csi.sock
            - --v=2
            - --leader-election
            - --leader-election-namespace=kube-system
            - --kube-api-qps=100
            - --kube-api-burst=200
            - --timeout=60s
            - --handle-volume-inuse-error=false
          securityContext:
            allowPrivilegeEscalation: false
            capabilities:
              drop:
              - ALL
            readOnlyRootFilesystem: true
            runAsGroup: 65532
            runAsNonRoot: true
            runAsUser: 65532
          resources:
            limits:
              memory: 400Mi
            requests:
              cpu: 10m
              memory: 20Mi
          volumeMounts:
            - {name: csi, mountPath: /csi}
            - {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
      volumes:
        - name: token
          projected:
            sources:
              - serviceAccountToken: {path: token, expirationSeconds: 3607}
              - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
              - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
        - name: servers
          configMap: {name: csi-nfs-servers}
        - name: csi
          emptyDir: {}
        - name: exports
          emptyDir: {}
---
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: csi-nfs-node
  namespace: kube-system
  labels:
    app: csi-nfs-node
    app.kubernetes.io/instance: nfs-csi
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
spec:
  revisionHistoryLimit: 10
  selector:
    matchLabels:
      app: csi-nfs-node
  minReadySeconds: 0
  updateStrategy:
    rollingUpdate:
      maxUnavailable: 1
    type: RollingUpdate
  template:
    metadata:
      labels:
        app: csi-nfs-node
        app.kubernetes.io/instance: nfs-csi
        app.kubernetes.io/name: nfs-csi
    spec:
      serviceAccountName: csi-nfs-node-sa
      automountServiceAccountToken: false
      priorityClassName: "system-node-critical"
      # The mounts' connections must outlive the plugin's pod.
      hostNetwork: true
      # A process that the kernel does not let go would keep the plugin's process namespace from ending, and its pod.
      hostPID: true
      dnsPolicy: ClusterFirstWithHostNet
      securityContext:
        seccompProfile:
          type: RuntimeDefault
      nodeSelector:
        kubernetes.io/os: linux
      tolerations:
        - operator: Exists
      containers:
        - name: nfs
          image: localhost/nfs-csi:v0.1.0
          imagePullPolicy: IfNotPresent
          args:
            - node
            - --endpoint=unix:///csi/csi.sock
            - --node-id=$(NODE_NAME)
            - --driver-name=nfs.csi.k8s.io
            - --mount-permissions=0
            - --kubelet-dir=/var/lib/kubelet
            - --registration-dir=/registration
            - --registration-endpoint=/var/lib/kubelet/plugins/csi-nfsplugin/csi.sock
            - --max-volumes-per-node=0
            - --log-level=info
            - --log-format=text
            - --metrics-address=:29653
          env:
            - name: NODE_NAME
              valueFrom:
                fieldRef:
                  fieldPath: spec.nodeName
          ports:
            - name: metrics
              containerPort: 29653
          livenessProbe:
            httpGet:
              path: /healthz
              port: metrics
            failureThreshold: 5
            initialDelaySeconds: 10
            periodSeconds: 20
            timeoutSeconds: 10
          # Ready when the kubelet has registered the driver: a rollout that goes wrong stops at its first node.
          readinessProbe:
            httpGet:
              path: /readyz
              port: metrics
            failureThreshold: 3
            periodSeconds: 5
            timeoutSeconds: 5
          # Kubernetes lets only privileged containers hand their mounts on to the host.
          securityContext:
            privileged: true
            readOnlyRootFilesystem: true
          resources:
            limits:
              memory: 300Mi
            requests:
              cpu: 10m
              memory: 20Mi
          volumeMounts:
            - {name: pods, mountPath: /var/lib/kubelet/pods, mountPropagation: Bidirectional}
            - {name: csi, mountPath: /csi}
            - {name: registry, mountPath: /registration}
            - {name: shares, mountPath: /tmp}
            - {name: servers, mountPath: /etc/nfs-csi, readOnly: true}
      volumes:
        # Of the kubelet's directory only what the driver needs: what else is in it are the node's own keys. Without a type:
        # the driver itself reports a kubeletDir that is wrong.
        - name: pods
          hostPath:
            path: /var/lib/kubelet/pods
        - name: csi
          hostPath:
            path: /var/lib/kubelet/plugins/csi-nfsplugin
            type: DirectoryOrCreate
        - name: registry
          hostPath:
            path: /var/lib/kubelet/plugins_registry
            type: DirectoryOrCreate
        # Where shares are mounted to remove what inline volumes leave.
        - name: shares
          emptyDir: {}
        - name: servers
          configMap: {name: csi-nfs-servers}
MANIFEST
}

nfs_csi_snapshot() {
	cat << "MANIFEST"
# Made from charts/nfs-csi by deploy/make: do not edit.
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: csi-nfs-controller-sa
  namespace: kube-system
  labels:
    app.kubernetes.io/instance: nfs-csi
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: csi-nfs-node-sa
  namespace: kube-system
  labels:
    app.kubernetes.io/instance: nfs-csi
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: csi-nfs-controller-provisioner
  labels:
    app.kubernetes.io/instance: nfs-csi
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
rules:
  - {apiGroups: [""], resources: [persistentvolumes], verbs: [get, list, watch, create, patch, delete]}
  # update: the finalizer on a claim that is being cloned.
  - {apiGroups: [""], resources: [persistentvolumeclaims], verbs: [get, list, watch, update]}
  - {apiGroups: [storage.k8s.io], resources: [storageclasses, volumeattributesclasses], verbs: [get, list, watch]}
  # The node that the scheduler chose for a claim that waits for its first consumer.
  - {apiGroups: [""], resources: [nodes], verbs: [get]}
  # list, watch and update: the finalizer on a snapshot that is being restored, and its removal where it was left behind.
  - {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshots], verbs: [get, list, watch, update]}
  - {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshotcontents], verbs: [get]}
  # Those that a class names: their namespaces are not known beforehand.
  - {apiGroups: [""], resources: [secrets], verbs: [get]}
  - {apiGroups: [""], resources: [events], verbs: [create, update, patch, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: csi-nfs-controller-resizer
  labels:
    app.kubernetes.io/instance: nfs-csi
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
rules:
  - {apiGroups: [""], resources: [persistentvolumes], verbs: [get, list, watch, patch]}
  - {apiGroups: [""], resources: [persistentvolumeclaims], verbs: [get, list, watch]}
  - {apiGroups: [""], resources: [persistentvolumeclaims/status], verbs: [patch]}
  - {apiGroups: [storage.k8s.io], resources: [volumeattributesclasses], verbs: [get, list, watch]}
  # Those that a class names: their namespaces are not known beforehand.
  - {apiGroups: [""], resources: [secrets], verbs: [get]}
  - {apiGroups: [""], resources: [events], verbs: [create, update, patch, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: csi-nfs-controller-snapshotter
  labels:
    app.kubernetes.io/instance: nfs-csi
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
rules:
  - {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshotclasses], verbs: [get, list, watch]}
  - {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshotcontents], verbs: [get, list, watch, update, patch]}
  - {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshotcontents/status], verbs: [update, patch]}
  # Those that a class names: their namespaces are not known beforehand.
  - {apiGroups: [""], resources: [secrets], verbs: [get]}
  - {apiGroups: [""], resources: [events], verbs: [create, update, patch, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: csi-nfs-controller-provisioner
  labels:
    app.kubernetes.io/instance: nfs-csi
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
subjects:
  - kind: ServiceAccount
    name: csi-nfs-controller-sa
    namespace: kube-system
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: csi-nfs-controller-provisioner
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: csi-nfs-controller-resizer
  labels:
    app.kubernetes.io/instance: nfs-csi
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
subjects:
  - kind: ServiceAccount
    name: csi-nfs-controller-sa
    namespace: kube-system
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: csi-nfs-controller-resizer
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: csi-nfs-controller-snapshotter
  labels:
    app.kubernetes.io/instance: nfs-csi
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
subjects:
  - kind: ServiceAccount
    name: csi-nfs-controller-sa
    namespace: kube-system
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: csi-nfs-controller-snapshotter
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: csi-nfs-controller-leader
  namespace: kube-system
  labels:
    app.kubernetes.io/instance: nfs-csi
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
rules:
  - {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, create, update, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: csi-nfs-controller-leader
  namespace: kube-system
  labels:
    app.kubernetes.io/instance: nfs-csi
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
subjects:
  - kind: ServiceAccount
    name: csi-nfs-controller-sa
    namespace: kube-system
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: csi-nfs-controller-leader
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata:
  name: nfs.csi.k8s.io
  labels:
    app.kubernetes.io/instance: nfs-csi
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
spec:
  attachRequired: false
  # Tells the driver that a volume is written in a pod's specification.
  podInfoOnMount: false
  storageCapacity: false
  fsGroupPolicy: File
  volumeLifecycleModes:
    - Persistent
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: csi-nfs-servers
  namespace: kube-system
  labels:
    app.kubernetes.io/instance: nfs-csi
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
data:
  servers.json: |
    {
      "servers": {}
    }
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: csi-nfs-controller
  namespace: kube-system
  labels:
    app: csi-nfs-controller
    app.kubernetes.io/instance: nfs-csi
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
spec:
  replicas: 1
  revisionHistoryLimit: 10
  selector:
    matchLabels:
      app: csi-nfs-controller
  minReadySeconds: 0
  strategy:
    type: Recreate
  template:
    metadata:
      labels:
        app: csi-nfs-controller
        app.kubernetes.io/instance: nfs-csi
        app.kubernetes.io/name: nfs-csi
    spec:
      serviceAccountName: csi-nfs-controller-sa
      # The sidecars have a token of their own below; the driver asks nothing of the API server.
      automountServiceAccountToken: false
      priorityClassName: "system-cluster-critical"
      hostNetwork: true
      dnsPolicy: ClusterFirstWithHostNet
      securityContext:
        fsGroup: 65532
        seccompProfile:
          type: RuntimeDefault
      affinity:
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
          - podAffinityTerm:
              labelSelector:
                matchLabels:
                  app: csi-nfs-controller
              topologyKey: kubernetes.io/hostname
            weight: 100
      nodeSelector:
        kubernetes.io/os: linux
      tolerations:
        - effect: NoSchedule
          key: node-role.kubernetes.io/master
          operator: Exists
        - effect: NoSchedule
          key: node-role.kubernetes.io/controlplane
          operator: Exists
        - effect: NoSchedule
          key: node-role.kubernetes.io/control-plane
          operator: Exists
        - effect: NoSchedule
          key: CriticalAddonsOnly
          operator: Exists
      containers:
        - name: nfs
          image: localhost/nfs-csi:v0.1.0
          imagePullPolicy: IfNotPresent
          args:
            - controller
            - --endpoint=unix:///csi/csi.sock
            - --driver-name=nfs.csi.k8s.io
            - --mount-permissions=0
            - --default-ondelete-policy=delete
            - --trash-retention=0
            - --working-mount-dir=/tmp
            - --log-level=info
            - --log-format=text
            - --metrics-address=:29652
          env:
            # Where the driver's own commands mount an export (nfs-csi trash).
            - {name: TMPDIR, value: /tmp}
          ports:
            - name: metrics
              containerPort: 29652
          livenessProbe:
            httpGet:
              path: /healthz
              port: metrics
            failureThreshold: 5
            initialDelaySeconds: 10
            periodSeconds: 20
            timeoutSeconds: 10
          readinessProbe:
            httpGet:
              path: /readyz
              port: metrics
            failureThreshold: 3
            periodSeconds: 5
            timeoutSeconds: 5
          # Not privileged: to mount exports (and be let to by AppArmor), and to keep owners, modes and special files.
          securityContext:
            allowPrivilegeEscalation: true
            appArmorProfile:
              type: Unconfined
            capabilities:
              add:
              - SYS_ADMIN
              - CHOWN
              - DAC_OVERRIDE
              - DAC_READ_SEARCH
              - FOWNER
              - FSETID
              - MKNOD
              drop:
              - ALL
            readOnlyRootFilesystem: true
          resources:
            limits:
              memory: 400Mi
            requests:
              cpu: 10m
              memory: 20Mi
          volumeMounts:
            - {name: csi, mountPath: /csi}
            - {name: exports, mountPath: /tmp}
            - {name: servers, mountPath: /etc/nfs-csi, readOnly: true}
        - name: csi-provisioner
          image: registry.k8s.io/sig-storage/csi-provisioner:v6.3.0
          imagePullPolicy: IfNotPresent
          args:
            - --csi-address=/csi/csi.sock
            - --v=2
            - --leader-election
            - --leader-election-namespace=kube-system
            - --kube-api-qps=100
            - --kube-api-burst=200
            - --timeout=1200s
            - --extra-create-metadata=true
            - --worker-threads=100
            # Shorter than the driver's --abandoned-after (15m), which ends a clone that is not asked for again.
            - --retry-interval-max=1m
          securityContext:
            allowPrivilegeEscalation: false
            capabilities:
              drop:
              - ALL
            readOnlyRootFilesystem: true
            runAsGroup: 65532
            runAsNonRoot: true
            runAsUser: 65532
          resources:
            limits:
              memory: 400Mi
            requests:
              cpu: 10m
              memory: 20Mi
          volumeMounts:
            - {name: csi, mountPath: /csi}
            - {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
        # --handle-volume-inuse-error=false: the volume grows while pods use it.
        - name: csi-resizer
          image: registry.k8s.io/sig-storage/csi-resizer:v2.2.0
          imagePullPolicy: IfNotPresent
          args:
            - --csi-address=/csi/csi.sock
            - --v=2
            - --leader-election
            - --leader-election-namespace=kube-system
            - --kube-api-qps=100
            - --kube-api-burst=200
            - --timeout=60s
            - --handle-volume-inuse-error=false
          securityContext:
            allowPrivilegeEscalation: false
            capabilities:
              drop:
              - ALL
            readOnlyRootFilesystem: true
            runAsGroup: 65532
            runAsNonRoot: true
            runAsUser: 65532
          resources:
            limits:
              memory: 400Mi
            requests:
              cpu: 10m
              memory: 20Mi
          volumeMounts:
            - {name: csi, mountPath: /csi}
            - {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
        - name: csi-snapshotter
          image: registry.k8s.io/sig-storage/csi-snapshotter:v8.6.0
          imagePullPolicy: IfNotPresent
          args:
            - --csi-address=/csi/csi.sock
            - --v=2
            - --leader-election
            - --leader-election-namespace=kube-system
            - --kube-api-qps=100
            - --kube-api-burst=200
            - --timeout=1200s
            - --extra-create-metadata=true
            - --worker-threads=100
            # Shorter than the driver's --abandoned-after (15m), as the provisioner's. With few threads a long snapshot would also
            # wait for the others before it is asked for again.
            - --retry-interval-max=1m
          securityContext:
            allowPrivilegeEscalation: false
            capabilities:
              drop:
              - ALL
            readOnlyRootFilesystem: true
            runAsGroup: 65532
            runAsNonRoot: true
            runAsUser: 65532
          resources:
            limits:
              memory: 400Mi
            requests:
              cpu: 10m
              memory: 20Mi
          volumeMounts:
            - {name: csi, mountPath: /csi}
            - {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
      volumes:
        - name: token
          projected:
            sources:
              - serviceAccountToken: {path: token, expirationSeconds: 3607}
              - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
              - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
        - name: servers
          configMap: {name: csi-nfs-servers}
        - name: csi
          emptyDir: {}
        - name: exports
          emptyDir: {}
---
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: csi-nfs-node
  namespace: kube-system
  labels:
    app: csi-nfs-node
    app.kubernetes.io/instance: nfs-csi
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
spec:
  revisionHistoryLimit: 10
  selector:
    matchLabels:
      app: csi-nfs-node
  minReadySeconds: 0
  updateStrategy:
    rollingUpdate:
      maxUnavailable: 1
    type: RollingUpdate
  template:
    metadata:
      labels:
        app: csi-nfs-node
        app.kubernetes.io/instance: nfs-csi
        app.kubernetes.io/name: nfs-csi
    spec:
      serviceAccountName: csi-nfs-node-sa
      automountServiceAccountToken: false
      priorityClassName: "system-node-critical"
      # The mounts' connections must outlive the plugin's pod.
      hostNetwork: true
      # A process that the kernel does not let go would keep the plugin's process namespace from ending, and its pod.
      hostPID: true
      dnsPolicy: ClusterFirstWithHostNet
      securityContext:
        seccompProfile:
          type: RuntimeDefault
      nodeSelector:
        kubernetes.io/os: linux
      tolerations:
        - operator: Exists
      containers:
        - name: nfs
          image: localhost/nfs-csi:v0.1.0
          imagePullPolicy: IfNotPresent
          args:
            - node
            - --endpoint=unix:///csi/csi.sock
            - --node-id=$(NODE_NAME)
            - --driver-name=nfs.csi.k8s.io
            - --mount-permissions=0
            - --kubelet-dir=/var/lib/kubelet
            - --registration-dir=/registration
            - --registration-endpoint=/var/lib/kubelet/plugins/csi-nfsplugin/csi.sock
            - --max-volumes-per-node=0
            - --log-level=info
            - --log-format=text
            - --metrics-address=:29653
          env:
            - name: NODE_NAME
              valueFrom:
                fieldRef:
                  fieldPath: spec.nodeName
          ports:
            - name: metrics
              containerPort: 29653
          livenessProbe:
            httpGet:
              path: /healthz
              port: metrics
            failureThreshold: 5
            initialDelaySeconds: 10
            periodSeconds: 20
            timeoutSeconds: 10
          # Ready when the kubelet has registered the driver: a rollout that goes wrong stops at its first node.
          readinessProbe:
            httpGet:
              path: /readyz
              port: metrics
            failureThreshold: 3
            periodSeconds: 5
            timeoutSeconds: 5
          # Kubernetes lets only privileged containers hand their mounts on to the host.
          securityContext:
            privileged: true
            readOnlyRootFilesystem: true
          resources:
            limits:
              memory: 300Mi
            requests:
              cpu: 10m
              memory: 20Mi
          volumeMounts:
            - {name: pods, mountPath: /var/lib/kubelet/pods, mountPropagation: Bidirectional}
            - {name: csi, mountPath: /csi}
            - {name: registry, mountPath: /registration}
            - {name: shares, mountPath: /tmp}
            - {name: servers, mountPath: /etc/nfs-csi, readOnly: true}
      volumes:
        # Of the kubelet's directory only what the driver needs: what else is in it are the node's own keys. Without a type:
        # the driver itself reports a kubeletDir that is wrong.
        - name: pods
          hostPath:
            path: /var/lib/kubelet/pods
        - name: csi
          hostPath:
            path: /var/lib/kubelet/plugins/csi-nfsplugin
            type: DirectoryOrCreate
        - name: registry
          hostPath:
            path: /var/lib/kubelet/plugins_registry
            type: DirectoryOrCreate
        # Where shares are mounted to remove what inline volumes leave.
        - name: shares
          emptyDir: {}
        - name: servers
          configMap: {name: csi-nfs-servers}
MANIFEST
}

snapshot_controller() {
	cat << "MANIFEST"
# Made from charts/nfs-csi by deploy/make: do not edit.
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  annotations:
    api-approved.kubernetes.io: https://github.com/kubernetes-csi/external-snapshotter/pull/814
  labels:
    app.kubernetes.io/instance: snapshot-controller
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
  name: volumesnapshotclasses.snapshot.storage.k8s.io
spec:
  group: snapshot.storage.k8s.io
  names:
    kind: VolumeSnapshotClass
    listKind: VolumeSnapshotClassList
    plural: volumesnapshotclasses
    shortNames:
    - vsclass
    - vsclasses
    singular: volumesnapshotclass
  scope: Cluster
  versions:
  - additionalPrinterColumns:
    - description: The CSI driver that takes the snapshots.
      jsonPath: .driver
      name: Driver
      type: string
    - description: Whether the storage's snapshots go with their VolumeSnapshots.
      jsonPath: .deletionPolicy
      name: DeletionPolicy
      type: string
    - jsonPath: .metadata.creationTimestamp
      name: Age
      type: date
    name: v1
    schema:
      openAPIV3Schema:
        description: How snapshots are taken. A VolumeSnapshot names its class.
        properties:
          apiVersion:
            description: The version of the API that this object is written in.
            type: string
          deletionPolicy:
            description: What deleting a VolumeSnapshot does to the storage's snapshot.
              Delete removes it, Retain keeps it.
            enum:
            - Delete
            - Retain
            type: string
          driver:
            description: The name of the CSI driver that takes the snapshots.
            type: string
          kind:
            description: The kind of this object.
            type: string
          metadata:
            type: object
          parameters:
            additionalProperties:
              type: string
            description: What the driver is given with each snapshot.
            type: object
        required:
        - deletionPolicy
        - driver
        type: object
    served: true
    storage: true
    subresources: {}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  annotations:
    api-approved.kubernetes.io: https://github.com/kubernetes-csi/external-snapshotter/pull/955
  labels:
    app.kubernetes.io/instance: snapshot-controller
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
  name: volumesnapshotcontents.snapshot.storage.k8s.io
spec:
  group: snapshot.storage.k8s.io
  names:
    kind: VolumeSnapshotContent
    listKind: VolumeSnapshotContentList
    plural: volumesnapshotcontents
    shortNames:
    - vsc
    - vscs
    singular: volumesnapshotcontent
  scope: Cluster
  versions:
  - additionalPrinterColumns:
    - description: Whether volumes can be made from it.
      jsonPath: .status.readyToUse
      name: ReadyToUse
      type: boolean
    - description: The least size of a volume made from it, in bytes.
      jsonPath: .status.restoreSize
      name: RestoreSize
      type: integer
    - description: Whether the storage's snapshot goes with its VolumeSnapshot.
      jsonPath: .spec.deletionPolicy
      name: DeletionPolicy
      type: string
    - description: The CSI driver that has it.
      jsonPath: .spec.driver
      name: Driver
      type: string
    - description: Its VolumeSnapshotClass.
      jsonPath: .spec.volumeSnapshotClassName
      name: VolumeSnapshotClass
      type: string
    - description: The VolumeSnapshot it is bound to.
      jsonPath: .spec.volumeSnapshotRef.name
      name: VolumeSnapshot
      type: string
    - description: The namespace of that VolumeSnapshot.
      jsonPath: .spec.volumeSnapshotRef.namespace
      name: VolumeSnapshotNamespace
      type: string
    - jsonPath: .metadata.creationTimestamp
      name: Age
      type: date
    name: v1
    schema:
      openAPIV3Schema:
        description: A snapshot on the storage, as the cluster knows it. Its users
          see the VolumeSnapshot that it is bound to.
        properties:
          apiVersion:
            description: The version of the API that this object is written in.
            type: string
          kind:
            description: The kind of this object.
            type: string
          metadata:
            type: object
          spec:
            description: Which snapshot it is, and whose.
            properties:
              deletionPolicy:
                description: What deleting the VolumeSnapshot does to the storage's
                  snapshot. Delete removes it, Retain keeps it and this object.
                enum:
                - Delete
                - Retain
                type: string
              driver:
                description: The name of the CSI driver that has it.
                type: string
              source:
                description: Where it comes from. Exactly one of the two fields is
                  set, and neither changes.
                properties:
                  snapshotHandle:
                    description: The driver's id of a snapshot that is there already.
                    type: string
                    x-kubernetes-validations:
                    - message: snapshotHandle cannot be changed
                      rule: self == oldSelf
                  volumeHandle:
                    description: The driver's id of the volume of which a snapshot
                      is taken.
                    type: string
                    x-kubernetes-validations:
                    - message: volumeHandle cannot be changed
                      rule: self == oldSelf
                type: object
                x-kubernetes-validations:
                - message: volumeHandle cannot be removed
                  rule: '!has(oldSelf.volumeHandle) || has(self.volumeHandle)'
                - message: snapshotHandle cannot be removed
                  rule: '!has(oldSelf.snapshotHandle) || has(self.snapshotHandle)'
                - message: set one of volumeHandle and snapshotHandle, not both
                  rule: (has(self.volumeHandle) && !has(self.snapshotHandle)) || (!has(self.volumeHandle)
                    && has(self.snapshotHandle))
              sourceVolumeMode:
                description: Filesystem or Block, as the volume had it. A volume of
                  another mode is made from it only by those who may.
                type: string
                x-kubernetes-validations:
                - message: sourceVolumeMode cannot be changed
                  rule: self == oldSelf
              volumeSnapshotClassName:
                description: The VolumeSnapshotClass. It may be gone by now.
                type: string
              volumeSnapshotRef:
                description: The VolumeSnapshot that it is bound to. Its name and
                  namespace are needed.
                properties:
                  apiVersion:
                    description: The VolumeSnapshot's API version.
                    type: string
                  fieldPath:
                    description: Not used.
                    type: string
                  kind:
                    description: VolumeSnapshot.
                    type: string
                  name:
                    description: The VolumeSnapshot's name.
                    type: string
                  namespace:
                    description: The VolumeSnapshot's namespace.
                    type: string
                  resourceVersion:
                    description: The VolumeSnapshot's version when the two were bound.
                    type: string
                  uid:
                    description: The VolumeSnapshot's UID.
                    type: string
                type: object
                x-kubernetes-map-type: atomic
                x-kubernetes-validations:
                - message: set the name and the namespace of the VolumeSnapshot
                  rule: has(self.name) && has(self.__namespace__)
            required:
            - deletionPolicy
            - driver
            - source
            - volumeSnapshotRef
            type: object
            x-kubernetes-validations:
            - message: sourceVolumeMode cannot be removed
              rule: '!has(oldSelf.sourceVolumeMode) || has(self.sourceVolumeMode)'
          status:
            description: What there is. The snapshotter beside the driver writes it.
            properties:
              creationTime:
                description: When the data was frozen, in nanoseconds since 1970 (UTC).
                format: int64
                type: integer
              error:
                description: The last error, until a retry succeeds.
                properties:
                  message:
                    description: What went wrong.
                    type: string
                  time:
                    description: When it happened.
                    format: date-time
                    type: string
                type: object
              readyToUse:
                description: Whether volumes can be made from it.
                type: boolean
              restoreSize:
                description: The least size of a volume made from it, in bytes.
                format: int64
                minimum: 0
                type: integer
              snapshotHandle:
                description: The driver's id of the snapshot. Without it there is
                  none yet.
                type: string
              volumeGroupSnapshotHandle:
                description: The driver's id of the group snapshot it is a part of,
                  if any.
                type: string
            type: object
        required:
        - spec
        type: object
    served: true
    storage: true
    subresources:
      status: {}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  annotations:
    api-approved.kubernetes.io: https://github.com/kubernetes-csi/external-snapshotter/pull/814
  labels:
    app.kubernetes.io/instance: snapshot-controller
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
  name: volumesnapshots.snapshot.storage.k8s.io
spec:
  group: snapshot.storage.k8s.io
  names:
    kind: VolumeSnapshot
    listKind: VolumeSnapshotList
    plural: volumesnapshots
    shortNames:
    - vs
    singular: volumesnapshot
  scope: Namespaced
  versions:
  - additionalPrinterColumns:
    - description: Whether volumes can be made from it.
      jsonPath: .status.readyToUse
      name: ReadyToUse
      type: boolean
    - description: The claim it was taken of.
      jsonPath: .spec.source.persistentVolumeClaimName
      name: SourcePVC
      type: string
    - description: The content that was there before it.
      jsonPath: .spec.source.volumeSnapshotContentName
      name: SourceSnapshotContent
      type: string
    - description: The least size of a volume made from it.
      jsonPath: .status.restoreSize
      name: RestoreSize
      type: string
    - description: Its VolumeSnapshotClass.
      jsonPath: .spec.volumeSnapshotClassName
      name: SnapshotClass
      type: string
    - description: The VolumeSnapshotContent it is bound to.
      jsonPath: .status.boundVolumeSnapshotContentName
      name: SnapshotContent
      type: string
    - description: When the data was frozen.
      jsonPath: .status.creationTime
      name: CreationTime
      type: date
    - jsonPath: .metadata.creationTimestamp
      name: Age
      type: date
    name: v1
    schema:
      openAPIV3Schema:
        description: A snapshot of a volume, as its user asks for it. It is bound
          to a VolumeSnapshotContent.
        properties:
          apiVersion:
            description: The version of the API that this object is written in.
            type: string
          kind:
            description: The kind of this object.
            type: string
          metadata:
            type: object
          spec:
            description: What is wanted.
            properties:
              source:
                description: Of what the snapshot is. Exactly one of the two fields
                  is set, and neither changes.
                properties:
                  persistentVolumeClaimName:
                    description: The claim, in the same namespace, whose volume a
                      new snapshot is taken of.
                    type: string
                    x-kubernetes-validations:
                    - message: persistentVolumeClaimName cannot be changed
                      rule: self == oldSelf
                  volumeSnapshotContentName:
                    description: A VolumeSnapshotContent that is there already and
                      names a snapshot of the storage.
                    type: string
                    x-kubernetes-validations:
                    - message: volumeSnapshotContentName cannot be changed
                      rule: self == oldSelf
                type: object
                x-kubernetes-validations:
                - message: persistentVolumeClaimName cannot be removed
                  rule: '!has(oldSelf.persistentVolumeClaimName) || has(self.persistentVolumeClaimName)'
                - message: volumeSnapshotContentName cannot be removed
                  rule: '!has(oldSelf.volumeSnapshotContentName) || has(self.volumeSnapshotContentName)'
                - message: set one of persistentVolumeClaimName and volumeSnapshotContentName,
                    not both
                  rule: (has(self.volumeSnapshotContentName) && !has(self.persistentVolumeClaimName))
                    || (!has(self.volumeSnapshotContentName) && has(self.persistentVolumeClaimName))
              volumeSnapshotClassName:
                description: The VolumeSnapshotClass. Without it, the default class
                  of the volume's driver.
                type: string
                x-kubernetes-validations:
                - message: volumeSnapshotClassName cannot be empty; leave it out for
                    the default class
                  rule: size(self) > 0
            required:
            - source
            type: object
          status:
            description: What there is. The snapshot controller writes it.
            properties:
              boundVolumeSnapshotContentName:
                description: The VolumeSnapshotContent. Both must name each other.
                type: string
              creationTime:
                description: When the data was frozen.
                format: date-time
                type: string
              error:
                description: The last error, until a retry succeeds.
                properties:
                  message:
                    description: What went wrong.
                    type: string
                  time:
                    description: When it happened.
                    format: date-time
                    type: string
                type: object
              readyToUse:
                description: Whether volumes can be made from it.
                type: boolean
              restoreSize:
                description: The least size of a volume that is made from it, as a
                  quantity of bytes.
                pattern: ^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$
                type: string
                x-kubernetes-int-or-string: true
              volumeGroupSnapshotName:
                description: The VolumeGroupSnapshot it is a part of, if any.
                type: string
            type: object
        required:
        - spec
        type: object
    served: true
    storage: true
    subresources:
      status: {}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: snapshot-controller
  namespace: kube-system
  labels:
    app.kubernetes.io/instance: snapshot-controller
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: snapshot-controller
  labels:
    app.kubernetes.io/instance: snapshot-controller
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
rules:
  - {apiGroups: [""], resources: [persistentvolumes], verbs: [get, list, watch]}
  - {apiGroups: [""], resources: [persistentvolumeclaims], verbs: [get, list, watch, update]}
  - {apiGroups: [""], resources: [events], verbs: [create, update, patch, list, watch]}
  - {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshotclasses], verbs: [get, list, watch]}
  - {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshots, volumesnapshotcontents], verbs: [get, list, watch, create, update, patch, delete]}
  - {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshots/status, volumesnapshotcontents/status], verbs: [update, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: snapshot-controller
  labels:
    app.kubernetes.io/instance: snapshot-controller
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
subjects:
  - kind: ServiceAccount
    name: snapshot-controller
    namespace: kube-system
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: snapshot-controller
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: snapshot-controller-leader
  namespace: kube-system
  labels:
    app.kubernetes.io/instance: snapshot-controller
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
rules:
  - {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, create, update, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: snapshot-controller-leader
  namespace: kube-system
  labels:
    app.kubernetes.io/instance: snapshot-controller
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
subjects:
  - kind: ServiceAccount
    name: snapshot-controller
    namespace: kube-system
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: snapshot-controller-leader
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: snapshot-controller
  namespace: kube-system
  labels:
    app: snapshot-controller
    app.kubernetes.io/instance: snapshot-controller
    app.kubernetes.io/name: nfs-csi
    app.kubernetes.io/version: 0.1.0
spec:
  replicas: 1
  revisionHistoryLimit: 10
  # It ends after some 30 s where the snapshot API is not there: before that it is not available.
  minReadySeconds: 35
  strategy:
    type: RollingUpdate
    rollingUpdate: {maxSurge: 0, maxUnavailable: 1}
  selector:
    matchLabels:
      app: snapshot-controller
  template:
    metadata:
      labels:
        app: snapshot-controller
        app.kubernetes.io/instance: snapshot-controller
        app.kubernetes.io/name: nfs-csi
    spec:
      serviceAccountName: snapshot-controller
      priorityClassName: "system-cluster-critical"
      affinity:
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
          - podAffinityTerm:
              labelSelector:
                matchLabels:
                  app: snapshot-controller
              topologyKey: kubernetes.io/hostname
            weight: 100
      nodeSelector:
        kubernetes.io/os: linux
      tolerations:
        - effect: NoSchedule
          key: node-role.kubernetes.io/master
          operator: Exists
        - effect: NoSchedule
          key: node-role.kubernetes.io/controlplane
          operator: Exists
        - effect: NoSchedule
          key: node-role.kubernetes.io/control-plane
          operator: Exists
        - effect: NoSchedule
          key: CriticalAddonsOnly
          operator: Exists
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        seccompProfile:
          type: RuntimeDefault
      containers:
        - name: snapshot-controller
          image: registry.k8s.io/sig-storage/snapshot-controller:v8.6.0
          imagePullPolicy: IfNotPresent
          args:
            - --v=2
            - --leader-election
            - --leader-election-namespace=kube-system
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop: [ALL]
          resources:
            limits:
              memory: 300Mi
            requests:
              cpu: 10m
              memory: 20Mi
MANIFEST
}

# Standard input may be this file.
install "$@" < /dev/null
