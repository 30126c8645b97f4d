#!/bin/bash
# System packages that Railyard needs, and their installation on Debian and Ubuntu. script/bootstrap and `railyard
# install` use it:
#   packages.sh missing [EXTRA...]      print the packages whose programs are absent, one per line
#   packages.sh install PACKAGE...      install them, as root
# Exit status 2: an unknown argument; 3: the machine lacks something.
set -euo pipefail
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin # where an ordinary user's PATH doesn't lead
policy=/usr/sbin/policy-rc.d

# program:package. What is found is used as it is, so an Open vSwitch of one's own is left alone.
programs=(
    ovs-vswitchd:openvswitch-switch ovsdb-server:openvswitch-switch ovs-vsctl:openvswitch-switch
    mnexec:mininet iperf:mininet iperf3:iperf3 ip:iproute2 tc:iproute2 ethtool:ethtool nft:nftables tcpdump:tcpdump
    ping:iputils-ping ps:procps unshare:util-linux nsenter:util-linux etcd:etcd-server
)

say() { printf 'railyard: %s\n' "$*"; }
lack() {
    say "$*" >&2
    exit 3
}

missing_packages() { # missing_packages EXTRA...
    local pair extra
    for extra in "$@"; do
        case $extra in
        cluster | gloo | labs | record | torchft) ;; # Python packages only
        mininet) programs+=(ovs-testcontroller:openvswitch-testcontroller telnet:telnet) ;;
        mpi) programs+=(mpirun:openmpi-bin) ;;
        browser) programs+=(chromium:chromium) ;;
        sshd) programs+=(sshd:openssh-server ssh-keygen:openssh-client) ;;
        *) echo "error: EXTRA: '$extra' is not known: allowed are browser, cluster, gloo, labs, mininet, mpi, record, sshd, torchft" >&2 && return 2 ;;
        esac
    done
    for pair in "${programs[@]}"; do
        command -v "${pair%%:*}" >/dev/null || echo "${pair#*:}"
    done | sort -u
}

quietly() { # a step's output is shown only if it fails; while it runs, its newest line is
    local status=0
    : >"$log"
    # The step itself stays in the foreground: bash lets commands in the background ignore Ctrl-C.
    show_progress &
    watcher=$!
    "$@" >"$log" 2>&1 </dev/null || status=$?
    end_progress
    [ $status != 0 ] || return 0
    cat "$log" >&2
    lack "failed: $*"
}

show_progress() { # on a terminal one line that changes, elsewhere a line every 15 s
    local start=$SECONDS line
    while sleep 1; do
        line=$(tail -n 1 "$log" 2>/dev/null | tr -d '\r' | sed 's/^ *//' | cut -c 1-60)
        if [ -t 1 ]; then
            printf '\r\033[Krailyard: %4d s  %s' $((SECONDS - start)) "$line"
        elif [ $(((SECONDS - start) % 15)) = 0 ]; then
            say "$((SECONDS - start)) s  $line"
        fi
    done
}

end_progress() {
    [ -n "${watcher:-}" ] || return 0
    kill "$watcher" 2>/dev/null || true
    wait "$watcher" 2>/dev/null || true
    watcher=
    if [ -t 1 ]; then printf '\r\033[K'; fi
}

tidy_up() {
    [ "$BASHPID" = $$ ] || return 0 # show_progress, ended at its start, would run it too
    end_progress
    rm -f "$log"
    if [ -n "${policy_is_ours:-}" ]; then rm -f "$policy"; fi
}

# Every run has Open vSwitch and etcd processes of its own, so nothing needs to start now or at the next boot.
hold_back_services() {
    [ -d "${policy%/*}" ] && ! [ -e "$policy" ] || return 0
    policy_is_ours=1
    printf '#!/bin/sh\n# Made by %s while it installs; delete it if you find it afterwards.\nexit 101\n' "$0" >"$policy"
    chmod 755 "$policy"
}

disable_services() { # disable_services PACKAGE...: those that these packages brought, and no other's
    local package unit units
    command -v systemctl >/dev/null || return 0
    for package in "$@"; do
        case $package in
        openvswitch-switch) units=(openvswitch-switch.service ovs-record-hostname.service) ;;
        etcd-server) units=(etcd.service) ;;
        openvswitch-testcontroller) units=(openvswitch-testcontroller.service) ;;
        openssh-server) units=(ssh.service) ;;
        *) continue ;;
        esac
        for unit in "${units[@]}"; do
            if systemctl is-enabled --quiet "$unit" 2>/dev/null; then quietly systemctl disable "$unit"; fi
        done
    done
}

update_packages() { # the lists of packages
    export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
    say "apt-get update"
    quietly apt-get -o DPkg::Lock::Timeout=120 update
}

install_packages() { # install_packages PACKAGE...: after update_packages
    say "installing $*"
    hold_back_services
    quietly apt-get -o DPkg::Lock::Timeout=120 install -y --no-install-recommends "$@"
    disable_services "$@"
}

prepare() { # a log for `quietly`; what this script made is removed when it ends
    log=$(mktemp)
    trap tidy_up EXIT
}

main() {
    local what=${1:-}
    shift || true
    case $what in
    missing) missing_packages "$@" ;;
    install)
        prepare
        update_packages
        install_packages "$@"
        ;;
    *) echo "error: '$what': must be missing or install" >&2 && return 2 ;;
    esac
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then main "$@"; fi
