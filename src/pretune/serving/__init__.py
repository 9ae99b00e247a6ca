"""The inference server behind `pretune serve`: routes over HTTP, dynamic batching, and one worker process per model.

    request → guards (token, host, body) → routes → batching → worker process → model runner → response

The server process validates requests and never computes; a worker process holds the weights of one model and never
sees a socket. Functions that compute an operation of a model for a batch of texts belong in `operations`.
"""
