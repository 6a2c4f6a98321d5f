# Sourced by a job in the guest, after nfsd: a Kubernetes of one node, from the programs in $PATH, their logs in /run/out.
#
#   $KUBECONFIG   for kubectl and helm; api PATH gets an object as JSON
#   $E2E_IMAGES   an archive of images to load, besides those that are on the disk
#   $E2E_FAMILY   the only kind of address that there is, but for 127.0.0.1: ipv4 (the default) or ipv6
#   $E2E_NODE, $E2E_API   set here: the addresses of the node and of the API server
#
# Role based access is on, so that the chart's roles are tested; administrator, kubelet, scheduler and controller manager
# share one token. The service address of the API server lies on lo, where it listens itself, and the NFS server and it
# are reached at the node's address: neither a service proxy nor a name server runs. Pods without host network get an
# address from the ptp plugin. The node's address lies on an interface of its own, as the kubelet takes no loopback
# address.
case ${E2E_FAMILY:-ipv4} in
ipv4)
	export E2E_NODE=10.0.0.1 E2E_API=10.96.0.1
	prefix=24 router=10.0.0.2 services=10.96.0.0/24 pods=10.244.0.0/24 everywhere=0.0.0.0/0 loopback=127.0.0.1
	;;
ipv6)
	export E2E_NODE=fd00::1 E2E_API=fd00:96::1
	prefix=64 router=fd00::2 services=fd00:96::/112 pods=fd00:244::/64 everywhere=::/0 loopback=::1
	;;
esac
# host ADDRESS: as a URL has it.
host() { case $1 in *:*) echo "[$1]" ;; *) echo "$1" ;; esac; }
. "$TOP/test/kubernetes/containerd.sh"
state=/run/kubernetes
mkdir -p $state /var/lib/kubelet /var/log/pods /run/out/pods
mount --bind /run/out/pods /var/log/pods # so that what containers write is there to be read afterwards
export KUBECONFIG=$state/kubeconfig

# start NAME COMMAND...: a daemon.
start() {
	local name=$1
	shift
	{ "$@" > "/run/out/$name.log" 2>&1 || true; echo "$name ended" >> /run/ended; } &
}

# await SECONDS COMMAND...: repeats it until it succeeds.
await() {
	local end=$((SECONDS + $1))
	shift
	until "$@" > /dev/null 2>&1; do
		if [ -e /run/ended ]; then
			cat /run/ended >&2
			while read -r name _; do tail -n 5 "/run/out/$name.log" >&2; done < /run/ended
			exit 1
		fi
		[ "$SECONDS" -lt "$end" ] || { echo "timed out: $*" >&2; exit 1; }
		sleep 0.5
	done
}

# Far cheaper than kubectl, whose start alone takes more than a second here.
api() { curl -sfk -H 'Authorization: Bearer admin' "https://$(host $E2E_API)$1"; }

modprobe -d /run dummy
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 vm.overcommit_memory=1 kernel.panic=10 kernel.panic_on_oops=1
ip addr add $E2E_API dev lo
ip link add node0 type dummy
ip addr add $E2E_NODE/$prefix dev node0
ip link set node0 up
ip route add default via $router dev node0 # so that the kubelet finds the node's address

openssl genrsa -out $state/accounts.key 2048 2> /dev/null
echo 'admin,admin,admin,system:masters' > $state/tokens
cat > $KUBECONFIG <<-EOT
	apiVersion: v1
	kind: Config
	current-context: guest
	contexts: [{name: guest, context: {cluster: guest, user: admin}}]
	clusters: [{name: guest, cluster: {server: "https://$(host $E2E_API):443", certificate-authority: $state/pki/apiserver.crt}}]
	users: [{name: admin, user: {token: admin}}]
EOT

start etcd etcd --data-dir /run/etcd --log-level warn --unsafe-no-fsync \
	--listen-client-urls http://$(host $loopback):2379 --advertise-client-urls http://$(host $loopback):2379 \
	--listen-peer-urls http://$(host $loopback):2380 --initial-advertise-peer-urls http://$(host $loopback):2380 \
	--initial-cluster default=http://$(host $loopback):2380
# It makes its own certificate, which is also the cluster's root.
start apiserver kube-apiserver --etcd-servers http://$(host $loopback):2379 --cert-dir $state/pki \
	--secure-port 443 --advertise-address $E2E_NODE --service-cluster-ip-range $services \
	--authorization-mode RBAC --token-auth-file $state/tokens \
	--service-account-issuer https://kubernetes.default.svc \
	--service-account-key-file $state/accounts.key --service-account-signing-key-file $state/accounts.key \
	--allow-privileged --kubelet-preferred-address-types InternalIP --enable-priority-and-fairness=false --profiling=false
ctr --namespace k8s.io images import "$E2E_IMAGES" > /run/out/import.log 2>&1 &
importing=$!
await 180 api /readyz

# Only what storage needs: each controller costs start time. The flag takes full names only.
controllers=serviceaccount-controller,root-ca-certificate-publisher-controller,namespace-controller
controllers+=,garbage-collector-controller,pod-garbage-collector-controller,node-lifecycle-controller
controllers+=,deployment-controller,replicaset-controller,daemonset-controller,statefulset-controller
controllers+=,persistentvolume-binder-controller,persistentvolume-attach-detach-controller
controllers+=,persistentvolume-expander-controller,persistentvolume-protection-controller
controllers+=,persistentvolumeclaim-protection-controller,ephemeral-volume-controller,disruption-controller
start controller-manager kube-controller-manager --kubeconfig $KUBECONFIG --leader-elect=false \
	--service-account-private-key-file $state/accounts.key --root-ca-file $state/pki/apiserver.crt \
	--controllers "$controllers" --kube-api-qps 200 --kube-api-burst 400 --profiling=false
start scheduler kube-scheduler --kubeconfig $KUBECONFIG --leader-elect=false --profiling=false
wait "$importing" || { cat /run/out/import.log >&2; exit 1; }

# The kubelet wants a clock speed, which the guest's processor does not tell.
sed '/^model name/a cpu MHz\t\t: 2000.000' /proc/cpuinfo > $state/cpuinfo
mount --bind $state/cpuinfo /proc/cpuinfo
# localStorageCapacityIsolation keeps its default, true: without it the kubelet does not measure file systems, its stats of
# pods fail, and its metrics have no volumes.
cat > $state/kubelet.yaml <<-EOT
	apiVersion: kubelet.config.k8s.io/v1beta1
	kind: KubeletConfiguration
	containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
	cgroupDriver: cgroupfs
	healthzBindAddress: "$loopback"
	failSwapOn: false
	enforceNodeAllocatable: []
	resolvConf: /dev/null
	volumePluginDir: $state/volume-plugins
	serializeImagePulls: false
	volumeStatsAggPeriod: 5s
	imageGCHighThresholdPercent: 100
	evictionHard: {memory.available: 1Mi, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%}
	authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
	authorization: {mode: AlwaysAllow}
EOT
start kubelet kubelet --config $state/kubelet.yaml --kubeconfig $KUBECONFIG --hostname-override guest --node-ip $E2E_NODE
node_is_ready() { [[ $(api /api/v1/nodes/guest) == *KubeletReady* ]]; }
await 120 node_is_ready
