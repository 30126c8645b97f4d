# For CI: the same bootstrap as on a machine, no systemd. A fabric needs namespaces and /dev/net/tun, so run it with
#   docker run --rm --privileged --device /dev/net/tun railyard
# or, with less:
#   docker run --rm --cap-add SYS_ADMIN --cap-add NET_ADMIN --cap-add SYS_PTRACE --device /dev/net/tun \
#       --security-opt apparmor=unconfined --security-opt seccomp=unconfined --security-opt systempaths=unconfined railyard
# All tests and quickstart: the same with --entrypoint .ci/run.
FROM debian:12-slim
WORKDIR /railyard
COPY pyproject.toml README.md LICENSE ./
COPY railyard railyard
COPY core/packages.sh core/
COPY script/bootstrap script/
RUN script/bootstrap && apt-get clean && rm -rf /var/lib/apt/lists/* "$HOME/.cache"
COPY . .
ENTRYPOINT ["script/run"]
