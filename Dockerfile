# One image for every role: switch, job, worker, bench. docker-compose.yml says who does what; docs/compose.md how to use it.
#
# Packages come from the index that pip is set up with, or, where wheels/ beside this file holds any, from there alone
# (`make wheels` fills it): for machines whose containers have no way to an index. Works with BuildKit and without.

ARG BASE=debian:bookworm-slim

FROM ${BASE} AS tools
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libpython3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

FROM tools AS requirements
COPY tools/requirements_of.py pyproject.toml ./
RUN python3 requirements_of.py demo p4 plot > /requirements.txt

FROM tools AS build
RUN python3 -m venv /opt/fanin
ENV PATH=/opt/fanin/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_CONSTRAINT=/src/requirements/constraints.txt
WORKDIR /src

# What changes rarely first. PyTorch is most of the image, and is installed again only when this list or the constraints
# have changed, not whenever pyproject.toml has.
COPY --from=requirements /requirements.txt requirements/
COPY requirements/constraints.txt wheels* requirements/
# An index of PyTorch's CPU builds saves some gigabytes: --build-arg PIP_EXTRA_INDEX_URL=...
ARG PIP_EXTRA_INDEX_URL=
RUN if ls requirements/*.whl > /dev/null 2>&1; then export PIP_NO_INDEX=1 PIP_FIND_LINKS=requirements; fi \
    && pip install --quiet --requirement requirements/requirements.txt

COPY LICENSE MANIFEST.in README.md pyproject.toml setup.py ./
COPY fanin fanin
COPY switch switch
COPY host host
COPY native native
COPY emulation emulation
COPY benchmarks benchmarks
COPY examples examples
COPY p4/build p4/build
# 1: native code is compiled in half of the time, and slow: for checks of the image itself.
ARG FANIN_BUILD_QUICK=
RUN pip install --quiet --no-build-isolation --no-deps --no-index .

FROM ${BASE}
RUN apt-get update \
    && apt-get install --yes --no-install-recommends iproute2 libstdc++6 python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 fanin \
    && install --directory --owner fanin /results \
    && install --directory --mode 1777 /keys
COPY --from=build /opt/fanin /opt/fanin
COPY p4/build /opt/fanin/p4
# /tmp and /keys: whoever it runs as may write there
ENV PATH=/opt/fanin/bin:$PATH PYTHONUNBUFFERED=1 MPLCONFIGDIR=/tmp/matplotlib
USER fanin
WORKDIR /home/fanin
EXPOSE 4919/tcp 4919/udp 4920/tcp
CMD ["fanin", "switch"]
