"""Make the environment that the Makefile's targets run in: .venv with rmqha and all its extras. Standard library only.

    python3 tools/bootstrap.py [--light] [DIRECTORY]

With --light only what `rmqha` needs to run: no Spark, nothing that only tests need.

Looks for a Python of 3.11 or newer, makes a virtual environment with it and installs the package in place with pip.
Every other package comes in the version and with a hash that requirements/*.lock name (`make lock` renews them), also
what builds packages; a file with another hash ends it. Some systems split `ensurepip` or `venv` off their Python: the
wheel of pip that the lock names is then fetched from the package index. pip's own environment variables
(PIP_INDEX_URL, PIP_CERT, proxies) are honoured.
This file is read by whatever `python3` is, so it keeps to what Python 3.6 understands.
"""

import hashlib
import html.parser
import locale
import os
import re
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

OLDEST = (3, 11)
CANDIDATES = ["python3.13", "python3.12", "python3.11", "python3.14", "python3", "python"]
INDEX = "https://pypi.org/simple"
ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "requirements"
SOURCES = ["--only-binary", ":all:", "--no-binary", "pyspark"]
"""Of all packages only Spark has no wheel: whatever else would have to be compiled here is refused, with a sentence."""
BUILD_LOCK, DEV_LOCK, RUN_LOCK = LOCKS / "build.lock", LOCKS / "dev.lock", LOCKS / "run.lock"


def say(text):
    print(f"bootstrap: {text}", file=sys.stderr, flush=True)


def version_of(python):
    """(major, minor) of an interpreter, (0, 0) if it does not run."""
    try:
        text = subprocess.check_output(
            [str(python), "-c", "import sys; print(sys.version_info[0], sys.version_info[1])"],
            stderr=subprocess.DEVNULL,
        )
    except (OSError, subprocess.CalledProcessError):
        return (0, 0)
    major, minor = text.decode().split()
    return (int(major), int(minor))


def find_python():
    """An interpreter that is new enough: this one, else the first found on PATH."""
    if sys.version_info >= OLDEST:
        return sys.executable
    for name in CANDIDATES:
        path = shutil.which(name)
        if path and version_of(path) >= OLDEST:
            return path
    sys.exit(
        f"bootstrap: rmqha needs Python {OLDEST[0]}.{OLDEST[1]} or newer; {sys.executable} is "
        f"{sys.version_info[0]}.{sys.version_info[1]} and no newer one is on PATH: install one and run make again"
    )


class Links(html.parser.HTMLParser):
    """The files that a page of a package index (PEP 503) offers."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        fields = dict(attrs)
        if tag == "a" and fields.get("href") and "data-yanked" not in fields:
            self.found.append(fields["href"])


def fetch(url):
    """The bytes at a URL; user and password in it are sent as basic authentication, proxies are the environment's."""
    parts = urllib.parse.urlsplit(url)
    handlers = [urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=os.environ.get("PIP_CERT")))]
    if parts.username:
        url = urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        passwords = urllib.request.HTTPPasswordMgrWithPriorAuth()
        user, password = urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or "")
        passwords.add_password(None, url, user, password, is_authenticated=True)
        handlers.append(urllib.request.HTTPBasicAuthHandler(passwords))
    timeout = float(os.environ.get("PIP_DEFAULT_TIMEOUT", "60"))
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=timeout) as answer:
            return answer.read()
    except urllib.error.URLError as error:
        raise OSError(f"cannot fetch {url}: {error.reason}") from None


def locked(lock, name):
    """(version, hashes) of a package in the text of a lock file."""
    match = re.search(
        r"^" + re.escape(name) + r"==(\S+)[^\n]*\\\n((?:[ ]+--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", lock, re.M
    )
    if not match:
        raise ValueError(f"the lock names no {name}: run make lock")
    return match.group(1), set(re.findall("sha256:([0-9a-f]{64})", match.group(2)))


def wheel_url(page, page_url, version):
    """Where an index page offers pip's wheel of this version."""
    links = Links()
    links.feed(page)
    for link in links.found:
        url = urllib.parse.urljoin(page_url, link).partition("#")[0]
        if url.endswith(f"/pip-{version}-py3-none-any.whl"):
            return url
    raise ValueError(f"{page_url} offers no wheel of pip {version}, which requirements/build.lock names")


def fetch_pip(directory):
    """Put pip's wheel into `directory`; returns its path. It runs from there without being installed."""
    version, hashes = locked(BUILD_LOCK.read_text(), "pip")
    page_url = os.environ.get("PIP_INDEX_URL", INDEX).rstrip("/") + "/pip/"
    url = wheel_url(fetch(page_url).decode(), page_url, version)
    name = url.rpartition("/")[2]
    say(f"fetching {name}")
    data = fetch(url)
    if hashlib.sha256(data).hexdigest() not in hashes:
        raise ValueError(f"what came from {url} is not what requirements/build.lock names")
    path = directory / name
    path.write_bytes(data)
    return path


def make_environment(python, directory):
    """A virtual environment without pip in it, unless there is one that runs; returns its interpreter."""
    inside = directory / "bin" / "python"
    if version_of(inside) >= OLDEST:
        return inside
    if directory.exists():
        shutil.rmtree(str(directory))
    if subprocess.call([python, "-c", "import venv"], stderr=subprocess.DEVNULL) == 0:
        subprocess.check_call([python, "-m", "venv", "--without-pip", str(directory)])
        return inside
    # PEP 405: a file and a link are all that makes an environment
    major, minor = version_of(python)
    real = Path(subprocess.check_output([python, "-c", "import sys; print(sys._base_executable)"]).decode().strip())
    (directory / "lib" / f"python{major}.{minor}" / "site-packages").mkdir(parents=True)
    inside.parent.mkdir()
    (directory / "pyvenv.cfg").write_text(f"home = {real.parent}\ninclude-system-site-packages = false\n")
    for name in ("python", "python3", f"python{major}.{minor}"):
        (inside.parent / name).symlink_to(real)
    return inside


def pip_command(inside, directory):
    """How to run pip inside the environment."""
    if subprocess.call([str(inside), "-c", "import ensurepip"], stderr=subprocess.DEVNULL) == 0:
        subprocess.check_call([str(inside), "-m", "ensurepip", "--default-pip"], stdout=subprocess.DEVNULL)
        return [str(inside), "-m", "pip"]
    say("this Python has no ensurepip")
    return [str(inside), f"{fetch_pip(directory)}/pip"]


def path_problem(path, encoding, version):
    """Why no Python of that version starts from an environment at `path`, or "". Until 3.13 it reads the names of an
    environment's packages by the locale's encoding, whatever PYTHONUTF8 says."""
    try:
        str(path).encode("utf-8" if version >= (3, 13) else encoding)
    except UnicodeEncodeError:
        return (
            f"the locale's encoding {encoding} has not all letters of {str(path)!a}: "
            "set LC_ALL=C.UTF-8 here and wherever rmqha runs, or move the directory"
        )
    return ""


def main():
    python = find_python()
    if python != sys.executable:
        sys.exit(subprocess.call([python, str(Path(__file__).resolve()), *sys.argv[1:]]))
    light, given = "--light" in sys.argv[1:], [word for word in sys.argv[1:] if word != "--light"]
    directory = Path(given[0]).absolute() if given else ROOT / ".venv"
    major, minor = version_of(python)
    problem = path_problem(ROOT, locale.nl_langinfo(locale.CODESET), (major, minor))
    if problem:
        sys.exit(f"bootstrap: {problem}")
    say(f"{directory} with Python {major}.{minor}")
    try:
        inside = make_environment(python, directory)
        pip = pip_command(inside, directory)
        install = [*pip, "install", "--disable-pip-version-check"]
        say("installing what builds packages")
        subprocess.check_call(
            [*install, "--quiet", "--require-hashes", "--only-binary", ":all:", "-r", str(BUILD_LOCK)]
        )
        # from here on nothing is built by anything that is not locked
        install = [str(inside), "-m", "pip", "install", "--disable-pip-version-check", "--no-build-isolation"]
        if light:
            say("installing what rmqha needs, 84 MB on the disk")
        else:
            say("installing all extras too; the first time this fetches about 500 MB, most of it Spark")
        subprocess.check_call([*install, "--require-hashes", *SOURCES, "-r", str(RUN_LOCK if light else DEV_LOCK)])
        subprocess.check_call([*install, "--quiet", "--no-deps", "--editable", str(ROOT)])
        # pip compiles what it copies, not what stays in place: every server would do so at each of its starts
        packages = [str(ROOT / name) for name in ("rmqha", "controller", "nameserver")]
        subprocess.check_call([str(inside), "-m", "compileall", "-q", *packages])
    except subprocess.CalledProcessError as error:
        sys.exit(
            f"bootstrap: {' '.join(error.cmd[:4])} failed; what it said stands above. The locks serve Python 3.11 to "
            f"3.13 on Linux, x86-64 and aarch64; this is Python {major}.{minor}"
        )
    except (OSError, ValueError) as error:
        sys.exit(f"bootstrap: {error}")
    say("done")


if __name__ == "__main__":
    main()
