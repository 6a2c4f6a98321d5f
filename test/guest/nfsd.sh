# Sourced by a job in the guest: a kernel NFS server on 127.0.0.1 (and ::1) with NFS 3, 4.0, 4.1 and 4.2.
#
# /run/export is an XFS file system with reflinks, exported under this very path for all versions: version 4 needs a
# root of all exports that can itself be exported, which this machine's root (hostfs) is not, so the server's world is
# /run/nfsroot (rootdir= of nfs.conf), and what is exported there is bound to the same path outside of it.
#
#   nfsd                       starts it
#   export_more NAME OPTIONS [SIZE]   exports /run/exports/NAME, a tmpfs of this size, with other options
#   export_again NAME OPTIONS  exports /run/export as /run/exports/NAME too, with other options
#   export_disk NAME OPTION... exports /run/exports/NAME, a disk made by mkfs.xfs with options
#   export_without_lists NAME  exports /run/exports/NAME, a disk whose file system has no access control lists
#   export_quota xfs|ext4      exports /run/exports/quota-xfs or -ext4, a disk of 2 GiB with limits of projects
#   EXPORT_SIZE                the size of /run/export (default 1G; sparse, in memory)
mkdir -p /var/lib/nfs/{rpc_pipefs,sm,sm.bak,v4recovery} /run/rpcbind /run/nfsroot
touch /var/lib/nfs/{etab,rmtab,state,export-lock}
mount -t rpc_pipefs rpc_pipefs /var/lib/nfs/rpc_pipefs
mount -t nfsd nfsd /proc/fs/nfsd
mount -t tmpfs nfsroot /run/nfsroot
printf '[exports]\nrootdir=/run/nfsroot\n' > /run/nfs.conf
mount --bind /run/nfs.conf /etc/nfs.conf

# both FOLDER: makes the folder, and the same one as the server sees it.
both() { mkdir -p "$1" "/run/nfsroot$1"; }

next_fsid=10
export_more() {
	both "/run/exports/$1"
	mount -t tmpfs -o "size=${3:-50%}" "$1" "/run/nfsroot/run/exports/$1"
	mount --bind "/run/nfsroot/run/exports/$1" "/run/exports/$1"
	next_fsid=$((next_fsid + 1))
	exportfs -o "$2,insecure,no_subtree_check,fsid=$next_fsid" "*:/run/exports/$1"
}

# export_again NAME OPTIONS: what /run/export has is there too, for clients that are to have other rights.
export_again() {
	both "/run/exports/$1"
	mount --bind /run/nfsroot/run/export "/run/nfsroot/run/exports/$1"
	next_fsid=$((next_fsid + 1))
	exportfs -o "$2,insecure,no_subtree_check,fsid=$next_fsid" "*:/run/exports/$1"
}

# export_disk NAME OPTIONS...: the same with an XFS file system made with these options (1 GiB, sparse, in memory).
export_disk() {
	name=$1; shift
	both "/run/exports/$name"
	truncate -s 1G "/run/$name.img"
	mkfs.xfs -q "$@" "/run/$name.img"
	mount -o loop,noatime "/run/$name.img" "/run/nfsroot/run/exports/$name"
	mount --bind "/run/nfsroot/run/exports/$name" "/run/exports/$name"
	exportfs -o rw,no_root_squash,insecure,no_subtree_check "*:/run/exports/$name"
}

export_without_lists() {
	both "/run/exports/$1"
	truncate -s 64M "/run/$1.img"
	mkfs.ext2 -q "/run/$1.img"
	# ext4 refuses `noacl`.
	mount -t ext2 -o loop,noatime,noacl "/run/$1.img" "/run/nfsroot/run/exports/$1"
	mount --bind "/run/nfsroot/run/exports/$1" "/run/exports/$1"
	exportfs -o rw,no_root_squash,insecure,no_subtree_check "*:/run/exports/$1"
}

# export_quota KIND: the kernel of the guest loads no module by itself, and ext4 needs that of the format of its quotas.
export_quota() {
	local name=quota-$1
	both "/run/exports/$name"
	truncate -s 2G "/run/$name.img"
	case $1 in
	xfs) mkfs.xfs -q "/run/$name.img" ;;
	ext4)
		modprobe -d /run quota_v2
		mkfs.ext4 -q -F -O quota,project -E quotatype=usrquota:grpquota:prjquota "/run/$name.img"
		;;
	esac
	mount -o loop,noatime,prjquota "/run/$name.img" "/run/nfsroot/run/exports/$name"
	mount --bind "/run/nfsroot/run/exports/$name" "/run/exports/$name"
	exportfs -o rw,no_root_squash,insecure,no_subtree_check "*:/run/exports/$name"
}

both /run/export
truncate -s "${EXPORT_SIZE:-1G}" /run/export.img
mkfs.xfs -q -m reflink=1 /run/export.img
mount -o loop,noatime /run/export.img /run/nfsroot/run/export
mount --bind /run/nfsroot/run/export /run/export
# nfsd: starts serving. Servers of servers.sh are started before: this guest's port mapper, which is reached by a path,
# would take their registrations for this one's.
nfsd() {
	rpcbind -w
	exportfs -o rw,no_root_squash,insecure,no_subtree_check,crossmnt '*:/run/export'
	rpc.mountd -p 20048 2> /run/mountd.log
	rpc.nfsd --grace-time 10 --lease-time 10 4
}
