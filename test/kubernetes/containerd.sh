# Sourced by a job in the guest: containerd, its store on the disk. The network is the caller's: pods have
# addresses of $pods and reach $everywhere.
: "${loopback:=127.0.0.1}" "${pods:=10.244.0.0/24}" "${everywhere:=0.0.0.0/0}"
mkdir -p /var/lib/containerd
mount /dev/ubda /var/lib/containerd
mount -t cgroup2 cgroup /sys/fs/cgroup
for module in overlay veth; do modprobe -d /run "$module"; done
mkdir -p /run/cni.d
cat > /run/containerd.toml <<-EOT
	version = 2
	disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
	  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
	  "io.containerd.tracing.processor.v1.otlp"]
	[plugins."io.containerd.grpc.v1.cri"]
	  sandbox_image = "pause:1"
	  stream_server_address = "$loopback"
	  # The guest's kernel has it, but switched off.
	  disable_apparmor = true
	  [plugins."io.containerd.grpc.v1.cri".cni]
	    bin_dir = "/usr/lib/cni"
	    conf_dir = "/run/cni.d"
	  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
	    runtime_type = "io.containerd.runc.v2"
	    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
	      BinaryName = "crun"
EOT
cat > /run/cni.d/10-ptp.conf <<-EOT
	{"cniVersion": "0.4.0", "name": "guest", "type": "ptp", "ipMasq": false,
	 "ipam": {"type": "host-local", "subnet": "$pods", "dataDir": "/run/cni", "routes": [{"dst": "$everywhere"}]}}
EOT
containerd --config /run/containerd.toml > /run/out/containerd.log 2>&1 &
containerd=$!
until [ -S /run/containerd/containerd.sock ]; do
	kill -0 "$containerd" || { tail -n 20 /run/out/containerd.log >&2; exit 1; }
	sleep 0.3
done
