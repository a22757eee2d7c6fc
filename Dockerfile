# redline for CPUs: docker build -t redline . && docker run --rm -v "$PWD:/work" redline train
FROM debian:12 AS build
RUN apt-get update && apt-get install --yes --no-install-recommends make git ca-certificates
WORKDIR /src
COPY . .
RUN make deb CMAKE_ARGS="-DREDLINE_CUDA=OFF -DREDLINE_TESTS=OFF"

FROM debian:12-slim
RUN --mount=from=build,source=/src/dist,target=/dist \
    apt-get update && apt-get install --yes --no-install-recommends /dist/*.deb openmpi-bin && rm -rf /var/lib/apt/lists/*
WORKDIR /work
ENTRYPOINT ["redline"]
