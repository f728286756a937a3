# DeAR on a CPU. Written from the documentation of its components and never built in this project's tests: if a line
# fails, please open an issue with its output.
#
#   docker build -t dear .
#   docker run --rm -v "$PWD:/work" dear predict runs/mine photos --out labels.csv
#   docker run --rm -v "$PWD:/work" -p 127.0.0.1:8000:8000 -e DEAR_RUN=runs/mine --entrypoint uvicorn dear \
#     serve:app --app-dir /opt/dear --host 0.0.0.0
#
# The usual wheels of torch contain CUDA and take about 5 GB. For a small image, name the index of CPU wheels that
# PyTorch's installation page lists: docker build --build-arg TORCH_INDEX=… -t dear .
FROM python:3.12-slim

ARG TORCH_INDEX=""
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch torchvision

WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir ".[roles,heic]" fastapi uvicorn python-multipart
COPY examples/serve.py /opt/dear/serve.py

# Nobody needs to be root to read photos. Downloaded weights, role maps and search lists are stored in /cache.
RUN useradd --create-home dear && mkdir /cache /work && chown dear /cache /work
USER dear
ENV HF_HOME=/cache/huggingface DEAR_CACHE=/cache/dear
WORKDIR /work
ENTRYPOINT ["dear"]
CMD ["--help"]
