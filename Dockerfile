# The last stage runs experiments, from the wheel; `--target development` has the checkout, with tests and linters.
# A fabric needs namespaces and /dev/net/tun, so run it with
#   docker run --rm --privileged --device /dev/net/tun -v "$PWD/runs:/data/runs" railyard run quickstart
# or, with less:
#   docker run --rm --cap-add SYS_ADMIN --cap-add NET_ADMIN --cap-add SYS_PTRACE --device /dev/net/tun \
#       --security-opt apparmor=unconfined --security-opt seccomp=unconfined --security-opt systempaths=unconfined railyard
FROM debian:12-slim AS system
COPY core/packages.sh /tmp/
RUN packages=$(bash /tmp/packages.sh missing) && bash /tmp/packages.sh install python3-venv $packages && \
    apt-get clean && rm -rf /var/lib/apt/lists/*

FROM system AS wheel
COPY . /source
RUN python3 -m venv /venv && /venv/bin/pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

# All tests and quickstart: docker run with the options above and --entrypoint .ci/run
FROM system AS development
WORKDIR /railyard
COPY pyproject.toml README.md LICENSE ./
COPY railyard railyard
COPY core/packages.sh core/
COPY script/bootstrap script/
RUN script/bootstrap cluster sshd && rm -rf "$HOME/.cache"
COPY . .
ENTRYPOINT ["script/run"]

FROM system
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    python3 -m venv /opt/railyard && /opt/railyard/bin/pip install --no-cache-dir --no-compile /wheels/*.whl
ENV PATH=/opt/railyard/bin:$PATH
WORKDIR /data
ENTRYPOINT ["railyard"]
