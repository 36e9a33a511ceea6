"""A stand-in of the Hugging Face Hub: the part of its HTTP interface that a push asks for, in a thread. It is not the Hub.

It knows create_repo, repo_info, validate-yaml, preupload, the batch of Git LFS and commit, as huggingface_hub 2.4 asks for
them. Its check of a card has the keys that the Hub documents, and no more.
"""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import yaml

# The owner of each token, and whether it may write.
TOKENS = {"hf_secret_of_ann": ("ann", True), "hf_reader_of_ann": ("ann", False)}
SIZES = (
    "n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B", "1B<n<10B", "10B<n<100B",
    "100B<n<1T", "n>1T",
)  # fmt: skip
# The tasks of the Hub that fit records of the kinds of this package.
TASKS = (
    "image-classification", "tabular-classification", "tabular-regression", "time-series-forecasting",
    "unconditional-image-generation",
)  # fmt: skip


def problems_of_card(content):
    """List the faults of the metadata of a card, by the Hub's documentation of them."""
    parts = content.split("---\n", 2)
    if len(parts) < 3 or parts[0]:
        return ["no metadata"]
    try:
        about = yaml.safe_load(parts[1])
    except yaml.YAMLError as error:
        return [f"no YAML: {error}"]
    found = [f"{key}: expected a text" for key in ("pretty_name", "library_name", "license") if not _is_text(about, key)]
    for key, known in (("size_categories", SIZES), ("task_categories", TASKS)):
        found += [f"{key}: {value!r} is unknown" for value in about.get(key, []) if value not in known]
    if not all(isinstance(tag, str) for tag in about.get("tags", [])):
        found.append("tags: expected texts")
    for config in about.get("configs", []):
        if not isinstance(config.get("config_name"), str):
            found.append("configs: expected config_name")
        files = config.get("data_files", [{}])
        found += ["configs: expected split and path" for file in files if set(file) != {"split", "path"}]
    return found


def _is_text(about, key):
    return key not in about or isinstance(about[key], str)


class Hub:
    """The stand-in.

    Attributes:
        repos: of each (kind, name) its files, and whether it is private.
        asked: method, path and token of each request.
        answers: a status for requests whose path holds a text, in place of the usual answer.
        commits: the summary of each commit.
    """

    def __init__(self):
        self.repos, self.asked, self.answers, self.commits, self.stored = {}, [], {}, [], {}
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *words):
                pass

            def do_GET(self):
                hub.answer(self)

            do_POST = do_PUT = do_GET

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, request):
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        token = (request.headers.get("Authorization") or "").removeprefix("Bearer ")
        self.asked.append((request.command, request.path, token))
        status, said = next(
            ((status, {"error": f"refused {token}"}) for part, status in self.answers.items() if part in request.path),
            None,
        ) or self.reply(request.command, request.path.strip("/"), token, body)
        text = json.dumps(said).encode()
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(text)))
        request.end_headers()
        request.wfile.write(text)

    def reply(self, method, path, token, body):
        if path.startswith("lfs/") and method == "PUT":
            self.stored[path.removeprefix("lfs/")] = body
            return 200, {}
        if path == "api/validate-yaml":
            asked = json.loads(body)
            problems = [{"message": text} for text in problems_of_card(asked["content"])]
            return (400 if problems else 200), {"errors": problems, "warnings": []}
        owner, may_write = TOKENS.get(token, (None, False))
        if owner is None:
            return 401, {"error": "Invalid username or password."}
        if path == "api/repos/create":
            asked = json.loads(body)
            name, kind = f"{asked['organization']}/{asked['name']}", asked.get("type", "model")
            if asked["organization"] != owner or not may_write:
                return 403, {"error": "You don't have the rights to create a repository under this namespace"}
            if (kind, name) in self.repos:
                return 409, {"error": f"You already created this {kind} repo"}
            self.repos[kind, name] = {"files": {".gitattributes": b""}, "private": asked.get("visibility") == "private"}
            return 200, {"url": f"{self.address}/{'datasets/' if kind == 'dataset' else ''}{name}"}
        if path.endswith(".git/info/lfs/objects/batch"):
            found = json.loads(body)["objects"]
            return 200, {"objects": [each | {"actions": {"upload": self._upload(each["oid"])}} for each in found]}
        _, kinds, user, name, *rest = path.split("/")
        kind, name = kinds.removesuffix("s"), f"{user}/{name}"
        repo = self.repos.get((kind, name))
        if repo is None:
            return 404, {"error": "Repository not found"}
        if not rest:
            siblings = [{"rfilename": file} for file in repo["files"]]
            return 200, {"id": name, "sha": "0" * 40, "private": repo["private"], "siblings": siblings}
        if rest[0] == "preupload":
            files = [file["path"] for file in json.loads(body)["files"]]
            large = (".safetensors", ".parquet", ".png")
            modes = [(file, "lfs" if file.endswith(large) else "regular") for file in files]
            return 200, {"files": [{"path": file, "uploadMode": mode, "shouldIgnore": False} for file, mode in modes]}
        return self._commit(kind, name, body)

    def _upload(self, oid):
        return {"href": f"{self.address}/lfs/{oid}"}

    def _commit(self, kind, name, body):
        for line in body.splitlines():
            item = json.loads(line)
            key, value = item["key"], item["value"]
            if key == "header":
                self.commits.append(value)
            elif key == "file":
                self.repos[kind, name]["files"][value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                self.repos[kind, name]["files"][value["path"]] = self.stored[value["oid"]]
        prefix = "datasets/" if kind == "dataset" else ""
        return 200, {"commitUrl": f"{self.address}/{prefix}{name}/commit/{'1' * 40}", "commitOid": "1" * 40}
