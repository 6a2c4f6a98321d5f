# Sourced by a job in the guest, in place of nfsd.sh: nfs-ganesha, a server in a process, serves /run/export to all clients
# at 127.0.0.1, as the same path for all NFS versions. Its VFS back end opens files by handles, so that each export is a
# disk with a file system of its own in memory. It has neither CLONE nor COPY, no extended attributes, and no access
# control lists.
#
#   nfsd                       starts it
#   export_more NAME OPTIONS [SIZE]   exports /run/exports/NAME, a disk of this size, with options of exportfs
#   export_again NAME OPTIONS  exports /run/export as /run/exports/NAME too, with other options
#   export_disk NAME OPTION... exports /run/exports/NAME, a disk made by mkfs.xfs with options
#   export_without_lists NAME  exports /run/exports/NAME; no export of this server has access control lists
#   EXPORT_SIZE                the size of /run/export (default 1G; sparse, in memory)
mkdir -p /run/rpcbind /run/ganesha /var/lib/nfs/ganesha
# Owners are numbers, as between all clients of NFS 4 that have no idmapd. Tests write to the server's disks behind its
# back, so it caches neither attributes nor names. It begins without a grace period, for no client can have been there before.
cat > /run/ganesha/conf <<-'EOS'
	NFS_CORE_PARAM { MNT_Port = 20048; mount_path_pseudo = true; Enable_NLM = false; Enable_UDP = false; Protocols = 3, 4; }
	NFSv4 { Lease_Lifetime = 10; Graceless = true; Only_Numeric_Owners = true; }
	EXPORT_DEFAULTS { Protocols = 3, 4; SecType = sys; Anonymous_Uid = 65534; Anonymous_Gid = 65534; Attr_Expiration_Time = 0; }
	NFS_KRB5 { Active_krb5 = false; }
	MDCACHE { Dir_Chunk = 0; }
EOS

# export_as FOLDER PATH OPTIONS: exports a folder by this path.
next_id=1
export_as() {
	local access=RW squash=none
	[[ ,$3, != *,ro,* ]] || access=RO
	[[ ,$3, != *,root_squash,* ]] || squash=root_squash
	echo "EXPORT { Export_Id = $next_id; Filesystem_Id = $next_id.0; Path = $1; Pseudo = $2;" \
		"Access_Type = $access; Squash = $squash; FSAL { Name = VFS; } }" >> /run/ganesha/conf
	next_id=$((next_id + 1))
}

# disk_at FOLDER SIZE MKFS...: a disk of this size (sparse, in memory), made by a command.
disk_at() {
	local folder=$1 size=$2 image
	image=/run/$(basename "$1").img
	shift 2
	mkdir -p "$folder"
	truncate -s "$size" "$image"
	"$@" "$image"
	mount -o loop,noatime "$image" "$folder"
}

export_more() {
	disk_at "/run/exports/$1" "${3:-1G}" mkfs.ext4 -q -m 0 -O ^has_journal
	rmdir "/run/exports/$1/lost+found"
	export_as "/run/exports/$1" "/run/exports/$1" "$2"
}

export_again() { export_as /run/export "/run/exports/$1" "$2"; }

export_disk() {
	local name=$1
	shift
	disk_at "/run/exports/$name" 1G mkfs.xfs -q "$@"
	export_as "/run/exports/$name" "/run/exports/$name" rw,no_root_squash
}

export_without_lists() { export_more "$1" rw,no_root_squash 64M; }

disk_at /run/export "${EXPORT_SIZE:-1G}" mkfs.xfs -q -m reflink=1
export_as /run/export /run/export rw,no_root_squash

nfsd() {
	rpcbind -w
	(ulimit -n 16384 && exec ganesha.nfsd -F -f /run/ganesha/conf -p /run/ganesha/pid -L /run/ganesha/log -N EVENT) &
	until (exec 3<> /dev/tcp/127.0.0.1/2049) 2> /dev/null; do
		kill -0 "$!" || { tail -n 20 /run/ganesha/log >&2; return 1; }
		sleep 0.1
	done
}
