"""tools/fetch against a server on this machine: whole, interrupted, wrong and absent files."""
import hashlib
import http.server
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import unittest

SOURCE = pathlib.Path(os.environ.get("FUSERUN_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
DATA = bytes(i * i % 251 for i in range(300_000))
HASH = hashlib.sha256(DATA).hexdigest()
GOOD = f"weights-{HASH[:8]}.pth"


class Handler(http.server.BaseHTTPRequestHandler):
    """Paths: /whole/NAME and /ranges/NAME (which knows Range), /cut/NAME (closes after half), /moved/NAME, /500/NAME."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        kind, _, name = self.path.lstrip("/").partition("/")
        start = self.headers.get("Range")
        self.server.seen.append((kind, start))
        data = self.server.data
        if kind == "moved":
            self.answer(302, Location=f"/ranges/{name}")
        elif kind == "cut":
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[:len(data) // 2])
            self.close_connection = True
        elif kind == "ranges" and start is not None:
            first = int(start.removeprefix("bytes=").rstrip("-"))
            if first >= len(data):
                self.answer(416, Content_Range=f"bytes */{len(data)}")
            else:
                self.answer(206, data[first:], Content_Range=f"bytes {first}-{len(data) - 1}/{len(data)}")
        elif kind in ("ranges", "whole"):
            self.answer(200, data)
        else:
            self.answer(404, b"there is no such file")


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """curl hangs up where it does not want the rest; that is no news."""


@unittest.skipUnless(shutil.which("curl"), "no curl here")
class Fetch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.data = DATA
        self.server.seen = []
        thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)

    def fetch(self, path, *arguments, status=0):
        url = path if "://" in path else f"http://127.0.0.1:{self.server.server_port}/{path}"
        environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        done = subprocess.run([SOURCE / "tools" / "fetch", url, *arguments], cwd=self.folder, env=environment,
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, status, done.stderr)
        return done

    def files(self):
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())

    def put(self, name, data):
        (self.folder / name).write_bytes(data)

    def test_whole(self):
        done = self.fetch(f"ranges/{GOOD}", "in/a folder")
        self.assertEqual(done.stdout, f"in/a folder/{GOOD}\n")
        self.assertEqual((self.folder / "in/a folder" / GOOD).read_bytes(), DATA)
        self.assertIn("SHA-256 as its name says", done.stderr)
        self.assertEqual(self.files(), [f"in/a folder/{GOOD}"])
        # again: nothing is asked of the server
        asked = len(self.server.seen)
        self.assertIn("there already", self.fetch(f"ranges/{GOOD}", "in/a folder").stderr)
        self.assertEqual(len(self.server.seen), asked)

    def test_query_redirect_and_a_name_without_hash(self):
        done = self.fetch("moved/net.pth?x=/y.z#part")
        self.assertEqual(self.files(), ["net.pth"])
        self.assertEqual((self.folder / "net.pth").read_bytes(), DATA)
        self.assertIn("nothing was checked", done.stderr)

    def test_goes_on_after_an_interruption(self):
        done = self.fetch(f"cut/{GOOD}", status=1)
        self.assertEqual(self.files(), [f"{GOOD}.part"])
        kept = (self.folder / f"{GOOD}.part").stat().st_size
        self.assertEqual((self.folder / f"{GOOD}.part").read_bytes(), DATA[:kept])
        self.assertIn(f"keeps the first {kept} bytes", done.stderr)
        self.assertGreater(kept, 0)
        self.server.seen.clear()
        self.assertIn(f"going on after {kept} bytes", self.fetch(f"ranges/{GOOD}").stderr)
        self.assertEqual(self.server.seen, [("ranges", f"bytes={kept}-")])
        self.assertEqual(self.files(), [GOOD])
        self.assertEqual((self.folder / GOOD).read_bytes(), DATA)

    def test_part_was_whole(self):
        self.put(f"{GOOD}.part", DATA)
        self.fetch(f"ranges/{GOOD}")
        self.assertEqual((self.folder / GOOD).read_bytes(), DATA)
        self.assertEqual([kind for kind, _ in self.server.seen], ["ranges"])

    def test_part_of_another_file(self):
        for part in (b"x" * 1000, b"x" * 400_000):
            self.put(f"{GOOD}.part", part)
            self.assertIn("beginning again", self.fetch(f"ranges/{GOOD}").stderr)
            self.assertEqual(self.files(), [GOOD])
            self.assertEqual((self.folder / GOOD).read_bytes(), DATA)
            (self.folder / GOOD).unlink()

    def test_server_without_ranges(self):
        self.put(f"{GOOD}.part", DATA[:1000])
        self.assertIn("beginning again", self.fetch(f"whole/{GOOD}").stderr)
        self.assertEqual((self.folder / GOOD).read_bytes(), DATA)

    def test_wrong_hash(self):
        name = "weights-0123456789ab.pth"
        done = self.fetch(f"ranges/{name}", status=1)
        self.assertIn(f"SHA-256 begins with {HASH[:12]}, not with 0123456789ab as the name says", done.stderr)
        self.assertEqual(self.files(), [])
        self.put(name, DATA)
        self.assertIn("move it away", self.fetch(f"ranges/{name}", status=1).stderr)
        self.assertEqual(self.files(), [name])

    def test_whole_hash_in_the_name(self):
        self.fetch(f"ranges/weights-{HASH}.pth")
        self.assertEqual(self.files(), [f"weights-{HASH}.pth"])

    def test_absent(self):
        done = self.fetch(f"absent/{GOOD}", status=1)
        self.assertIn("the server answers 404", done.stderr)
        self.assertEqual(self.files(), [])
        self.put(f"{GOOD}.part", DATA[:1000])
        self.assertIn("keeps the first 1000 bytes", self.fetch(f"absent/{GOOD}", status=1).stderr)
        self.assertEqual((self.folder / f"{GOOD}.part").read_bytes(), DATA[:1000])

    def test_no_server(self):
        self.server.shutdown()
        self.server.server_close()
        self.assertIn("could not be fetched", self.fetch(f"ranges/{GOOD}", status=1).stderr)
        self.assertEqual(self.files(), [])

    def test_wrong_arguments(self):
        for url in ("file:///etc/passwd", "ftp://127.0.0.1/x.pth", "http://127.0.0.1", "http://127.0.0.1/",
                    "http://127.0.0.1/a/..", "http://"):
            self.fetch(url, status=2)
        self.fetch(f"ranges/{GOOD}", "a", "b", status=2)
        self.assertEqual(self.files(), [])
        self.assertEqual(self.server.seen, [])

    def test_folder_that_cannot_be(self):
        self.put("taken", b"")
        (self.folder / f"{GOOD}.part").mkdir()
        self.assertIn("cannot write", self.fetch(f"ranges/{GOOD}", status=1).stderr)
        self.assertIn("cannot make the folder", self.fetch(f"ranges/{GOOD}", "taken", status=1).stderr)


if __name__ == "__main__":
    unittest.main()
