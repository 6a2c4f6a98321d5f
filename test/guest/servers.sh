# Sourced by a job in the guest, after nfsd.sh and before nfsd: more NFS servers, each in network, host name and mount namespaces of its
# own behind a pair of virtual interfaces. One server with two addresses is no substitute: NFS 4.1 sees through it and
# shares one connection.
#
#   server NAME N [DIR]  an NFS 4 server at 10.0.N.1 (this end is 10.0.N.2); its share is /, its folder DIR
#                        (default /run/export/NAME), its port $PORT if that is set
#                        With NFS_VERSION=3 it serves NFS 3 only, with a port mapper of its own; its share is /srv.
#   ganesha NAME N DIR   the same by nfs-ganesha; DIR is a disk's top directory
#   disk NAME OPTION...  /run/disks/NAME, a disk made by mkfs.xfs with options (3 GiB, sparse, in memory), for such a DIR
#   disk_ext4 NAME       the same made by mkfs.ext4
#   in_server NAME CMD…  runs a command in its namespaces (those of the process in /run/server-NAME.pid)
#   die NAME, undie NAME drops its TCP packets, lets them pass
#   delay NAME MS        its round-trip time
#
# And more NFS clients of the guest's own server: a driver that is started in one (in the network and host name namespaces
# of the process in /run/client-NAME.pid) shares no cache and no connection with those in others. All mounts are seen by all.
#
#   client NAME N        a client at 10.0.$((100 + N)).2, behind its interface `server`; all clients reach the guest's
#                        server at 10.0.99.1, so that a volume has one id
for module in veth nfsd ip_tables iptable_filter sch_netem; do modprobe -d /run "$module"; done
declare -A server_of

server() {
	local name=$1 n=$2 folder=${3:-/run/export/$1}
	mkdir -p "$folder"
	unshare -m -n -u --propagation slave bash -eu -s "$name" "$n" "$folder" <<-'EOS' &
		name=$1 n=$2 folder=$3
		hostname "server-$name"
		ip link set lo up
		mount -t tmpfs nfs /var/lib/nfs
		mkdir -p /var/lib/nfs/{rpc_pipefs,sm,sm.bak,v4recovery}
		touch /var/lib/nfs/{etab,rmtab,state,export-lock}
		mount -t rpc_pipefs rpc /var/lib/nfs/rpc_pipefs
		mount -t nfsd nfsd /proc/fs/nfsd
		umount /etc/nfs.conf
		until ip link show "s-$name" > /dev/null 2>&1; do sleep 0.1; done
		ip addr add "10.0.$n.1/24" dev "s-$name"
		ip link set "s-$name" up
		mount --bind /run /mnt
		if [ "${NFS_VERSION:-4}" = 3 ]; then
			mount --bind "$folder" /srv
			# The port mapper's files are here: no other one is to have them.
			mount -t tmpfs run /run
			mkdir /run/rpcbind
			rpcbind
			exportfs -o rw,no_root_squash,insecure,no_subtree_check "*:/srv"
			rpc.mountd -p 20048 -N 2 2> /dev/null
			rpc.nfsd -N 4 -V 3 4
		else
			echo 10 > /proc/fs/nfsd/nfsv4leasetime
			echo 10 > /proc/fs/nfsd/nfsv4gracetime
			exportfs -o rw,no_root_squash,insecure,fsid=0,no_subtree_check "*:$folder"
			# Version 4 only: version 3 cannot be served without a port mapper.
			rpc.mountd -p 20048 -N 3 -N 2 2> /dev/null
			rpc.nfsd -N 3 ${PORT:+-p "$PORT"} 4
		fi
		touch "/mnt/server-$name.ready"
		exec sleep infinity
	EOS
	link_server "$name" "$n" "$!"
}

ganesha() {
	local name=$1 n=$2 folder=$3
	unshare -m -n -u --propagation slave bash -eu -s "$name" "$n" "$folder" <<-'EOS' &
		name=$1 n=$2 folder=$3
		hostname "server-$name"
		ip link set lo up
		mount -t tmpfs nfs /var/lib/nfs
		mkdir -p /var/lib/nfs/ganesha /run/ganesha
		until ip link show "s-$name" > /dev/null 2>&1; do sleep 0.1; done
		ip addr add "10.0.$n.1/24" dev "s-$name"
		ip link set "s-$name" up
		cat > "/run/ganesha/$name" <<-EOC
			NFS_CORE_PARAM { Enable_NLM = false; Enable_UDP = false; Enable_RQUOTA = false; Protocols = 4; }
			NFSv4 { Lease_Lifetime = 10; Graceless = true; Only_Numeric_Owners = true; }
			NFS_KRB5 { Active_krb5 = false; }
			EXPORT { Export_Id = $n; Filesystem_Id = $n.0; Path = $folder; Pseudo = /; Protocols = 4; Access_Type = RW;
				Squash = none; SecType = sys; Attr_Expiration_Time = 0; FSAL { Name = VFS; } }
		EOC
		# Two of them have one disk.
		echo 'MDCACHE { Dir_Chunk = 0; }' >> "/run/ganesha/$name"
		ulimit -n 16384
		ganesha.nfsd -F -f "/run/ganesha/$name" -p "/run/ganesha/$name.pid" -L "/run/ganesha/$name.log" -N EVENT &
		until (exec 3<> "/dev/tcp/10.0.$n.1/2049") 2> /dev/null; do
			kill -0 "$!" || { tail -n 20 "/run/ganesha/$name.log" >&2; exit 1; }
			sleep 0.1
		done
		touch "/run/server-$name.ready"
		wait
	EOS
	link_server "$name" "$n" "$!"
}

# link_server NAME N PID: the interfaces of the server whose namespaces are those of a process
link_server() {
	local name=$1 n=$2 pid=$3
	server_of[$name]=$pid
	echo "$pid" > "/run/server-$name.pid"
	until [ "$(readlink "/proc/$pid/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
	ip link add "c-$name" type veth peer name "s-$name" netns "$pid"
	ip addr add "10.0.$n.2/24" dev "c-$name"
	ip link set "c-$name" up
	wait_ready server "$name" "$pid"
}

# wait_ready KIND NAME PID: until the process has done its part
wait_ready() {
	until [ -e "/run/$1-$2.ready" ]; do
		kill -0 "$3" || { echo "$1 $2 did not start" >&2; return 1; }
		sleep 0.1
	done
}

client() {
	local name=$1 n=$2
	unshare -n -u bash -eu -s "$name" "$n" <<-'EOS' &
		name=$1 n=$2
		hostname "client-$name"
		ip link set lo up
		until ip link show server > /dev/null 2>&1; do sleep 0.1; done
		ip addr add "10.0.$((100 + n)).2/24" dev server
		ip link set server up
		ip route add default via "10.0.$((100 + n)).1"
		touch "/run/client-$name.ready"
		exec sleep infinity
	EOS
	echo "$!" > "/run/client-$name.pid"
	until [ "$(readlink "/proc/$!/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
	ip addr replace 10.0.99.1/32 dev lo
	ip link add "k-$name" type veth peer name server netns "$!"
	ip addr add "10.0.$((100 + n)).1/24" dev "k-$name"
	ip link set "k-$name" up
	wait_ready client "$name" "$!"
}

disk() {
	local name=$1
	shift
	mkdir -p "/run/disks/$name"
	truncate -s 3G "/run/$name.img"
	mkfs.xfs -q "$@" "/run/$name.img"
	mount -o loop,noatime "/run/$name.img" "/run/disks/$name"
}
disk_ext4() {
	mkdir -p "/run/disks/$1"
	truncate -s 3G "/run/$1.img"
	mkfs.ext4 -q -F -N 500000 "/run/$1.img"
	mount -o loop,noatime "/run/$1.img" "/run/disks/$1"
}

in_server() {
	local name=$1
	shift
	nsenter -t "${server_of[$name]}" -m -n -u "$@"
}
die() { in_server "$1" iptables-legacy -A INPUT -p tcp -j DROP; }
undie() { in_server "$1" iptables-legacy -F INPUT; }
delay() { in_server "$1" tc qdisc replace dev "s-$1" root netem delay "$2ms"; }
