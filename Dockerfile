# docker build -t meshwright . && docker run --rm -v "$PWD:/work" meshwright solve spec.yaml
# An agent's tools: docker run --rm -i meshwright mcp
# The page: docker run --rm -p 127.0.0.1:8321:8321 meshwright ui --host 0.0.0.0
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY solver solver
COPY profiles profiles
COPY topologies topologies
COPY specs specs
COPY skills skills
COPY .ci/constraints.txt constraints.txt
RUN python -m venv /opt/meshwright \
    && /opt/meshwright/bin/pip install --quiet --no-cache-dir --constraint constraints.txt '.[html,mcp,ui]'

FROM python:3.12-slim
COPY --from=build /opt/meshwright /opt/meshwright
RUN useradd --create-home meshwright
USER meshwright
WORKDIR /work
ENV PATH=/opt/meshwright/bin:$PATH
ENTRYPOINT ["meshwright"]
CMD ["--help"]
