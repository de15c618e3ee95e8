"""Opens every page of the site in a headless Chromium, from the disk, as a reader would.

    python3 tests/test_browser.py SITE           SITE is the folder with index.html
    python3 tests/test_browser.py --self-test    pages with one fault each: is every fault found?
    python3 tests/test_browser.py SITE --pictures FOLDER PAGE...    pictures of pages, to look at

Of each page it wants: no error in the console, nothing from a network, no link into the void, no missing picture, every
formula drawn, nothing wider than the screen (1440 and 390 pixels), and text that can be read on light and on dark screens.
"""

import base64
import contextlib
import json
import multiprocessing
import os
import pathlib
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WIDTHS = {1440: 900, 390: 844}  # a desk and a telephone

# Runs in each page, told the width of the screen (a telephone makes room for what is too wide): faults as sentences.
LOOK = r"""(width => {
  const faults = [];
  const wide = document.documentElement.scrollWidth - width;
  if (wide > 0) faults.push(`the page is ${wide} pixels wider than the screen`);
  const content = document.querySelector('#doc-content');
  if (content && content.scrollWidth > content.clientWidth + 1)
    faults.push(`the text is ${content.scrollWidth - content.clientWidth} pixels wider than its place`);

  const color = text => { const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number); return {r, g, b, a}; };
  const over = (top, low) => ({r: top.r * top.a + low.r * (1 - top.a), g: top.g * top.a + low.g * (1 - top.a),
                               b: top.b * top.a + low.b * (1 - top.a), a: 1});
  const dark = matchMedia('(prefers-color-scheme: dark)').matches;
  const behind = element => {
    if (!element) return dark && getComputedStyle(document.documentElement).colorScheme.includes('dark') ?
        color('rgb(18, 18, 18)') : color('rgb(255, 255, 255)');
    const own = color(getComputedStyle(element).backgroundColor);
    return own.a == 1 ? own : over(own, behind(element.parentElement));
  };
  const light = ({r, g, b}) => [r, g, b].map(x => x / 255).map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
      .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
  const seen = new Set();
  for (const element of document.querySelectorAll('.contents *, .header *')) {
    const kind = `${element.parentElement.className} > ${element.tagName}.${element.className}`;  // one of a kind is enough
    if (seen.has(kind) || ![...element.childNodes].some(node => node.nodeType == 3 && node.data.trim())) continue;
    if (element.closest('svg, script, style') || !element.checkVisibility({visibilityProperty: true})) continue;
    seen.add(kind);
    const back = behind(element), front = over(color(getComputedStyle(element).color), back);
    const [low, high] = [light(back), light(front)].sort((x, y) => x - y);
    const contrast = (high + 0.05) / (low + 0.05);
    if (!(contrast >= 4.5)) faults.push(`${dark ? 'dark' : 'light'}: '${element.textContent.trim().slice(0, 40)}' (${kind}) ` +
                                        `has a contrast of ${contrast.toFixed(1)}, not 4.5`);
  }
  return faults;
})"""

# Once a page: what does not depend on the screen.
READ = r"""(async () => {
  if (window.MathJax) await new Promise(done => MathJax.Hub.Queue(done));
  const faults = [];
  for (const image of document.images) if (image.complete && !image.naturalWidth) faults.push('no picture: ' + image.src);
  for (const object of document.querySelectorAll('object[data]'))
    if (!object.clientWidth || !object.contentDocument && !object.data) faults.push('no picture: ' + object.data);
  const formulas = document.querySelectorAll('script[type^="math/tex"]');
  for (const formula of formulas) {
    const drawn = document.getElementById(formula.id + '-Frame');
    if (!drawn || !(drawn.getBoundingClientRect().width > 1) || drawn.querySelector('.merror, .MJXX-merror, [fill="red"]'))
      faults.push('a formula is not drawn: ' + formula.textContent);
  }
  const raw = [...document.querySelectorAll('.contents p, .contents li, .contents td')]
      .map(element => element.textContent).find(text => /\\\(|\\\[|\$`|\\f\$/.test(text) && !text.includes('#!'));
  if (raw) faults.push('a formula is not drawn: ' + raw.slice(0, 80));
  const colors = ['added', 'removed', 'where'].map(name => document.querySelector('pre.diff .' + name))
      .filter(line => line).map(line => getComputedStyle(line).color);
  if (document.querySelector('pre.diff') && new Set([...colors, getComputedStyle(document.body).color]).size != colors.length + 1)
    faults.push('a diff without colours');
  return {faults, title: document.title, formulas: formulas.length, diff: colors.length > 1,
          links: [...new Set([...document.querySelectorAll('a[href]')].map(a => a.href))],
          names: [...document.querySelectorAll('[id], a[name]')].flatMap(e => [e.id, e.getAttribute('name')]).filter(n => n)};
})()"""


class Browser:
    """Chromium, spoken to through two pipes (its DevTools protocol: JSON, each message ends with a zero byte)."""

    def __init__(self, hidden=True):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        read_commands, self.commands = os.pipe()
        self.answers, write_answers = os.pipe()

        def connect():  # Chromium reads from 3 and writes to 4
            commands, answers = os.dup(read_commands), os.dup(write_answers)
            os.dup2(commands, 3), os.dup2(answers, 4)

        options = ["--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
                   "--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND", "--user-data-dir=" + self.profile.name]
        self.process = subprocess.Popen(
            [CHROMIUM, *options, "about:blank"], preexec_fn=connect, pass_fds=(3, 4), stderr=subprocess.DEVNULL)
        os.close(read_commands), os.close(write_answers)
        self.buffer, self.events, self.number, self.session, self.now = b"", [], 0, None, None
        target = self.call("Target.createTarget", url="about:blank", hidden=hidden)["targetId"]  # what nobody sees is not painted
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.screen(1440, "light")

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.profile.cleanup()

    def receive(self):
        while b"\0" not in self.buffer:
            silent = not select.select([self.answers], [], [], 60)[0]
            if silent or not (part := os.read(self.answers, 1 << 20)):
                raise RuntimeError("the browser is silent" if silent else "the browser has ended")
            self.buffer += part
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def run(self, script):
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"]))
        return result["result"].get("value")

    def open(self, url):
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.receive())

    def screen(self, width, scheme):
        if (width, scheme) == self.now:
            return
        self.now = (width, scheme)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=WIDTHS[width], deviceScaleFactor=1, mobile=width < 500)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def troubles(self):
        """What the console and the loader have said since the page was opened."""
        for event in self.events:
            what, said = event.get("method"), event.get("params", {})
            if what == "Runtime.exceptionThrown":
                yield "an exception: " + str(said["exceptionDetails"].get("exception", said["exceptionDetails"]).get("description", said["exceptionDetails"]))
            elif what == "Runtime.consoleAPICalled" and said["type"] in ("error", "assert"):
                yield "an error in the console: " + str(said["args"][0].get("value"))
            elif what == "Log.entryAdded" and said["entry"]["level"] == "error":
                yield f"an error in the console: {said['entry']['text']} {said['entry'].get('url', '')}"
            elif what == "Network.requestWillBeSent" and not said["request"]["url"].startswith(("file:", "data:", "blob:")):
                yield "asks the network: " + said["request"]["url"]


def examine(browser, page):
    """Opens a page: its faults, and what READ returns."""
    browser.open(page.as_uri())
    read = browser.run(READ)
    faults = read["faults"]
    # Pages that somebody wrote, on all screens. Of Doxygen's lists there are a thousand, all in one style.
    screens = [(width, scheme) for width in WIDTHS for scheme in ("light", "dark")]
    if re.match(r"(struct|class|union|namespace|functions|globals|dir_)", page.name):
        screens = [(1440, "light"), (390, "dark")]
    for width, scheme in sorted(screens, key=lambda screen: screen != browser.now):  # begin as the last page ended
        browser.screen(width, scheme)
        faults += [f"{width} pixels: {fault}" for fault in browser.run(f"{LOOK}({width})")]
    return list(dict.fromkeys([*browser.troubles(), *faults])), read


def broken_links(pages):
    """pages: what READ returned, by path. Links within the site must lead to a file, and to a place in it."""
    for path, read in pages.items():
        for link in read["links"]:
            url = urllib.parse.urlparse(link)
            target = pathlib.Path(urllib.parse.unquote(url.path))
            name = urllib.parse.unquote(url.fragment)
            if url.scheme != "file":
                continue
            if not target.is_file():
                yield path, f"a link to nothing: {link}"
            elif name and target in pages and name not in pages[target]["names"]:
                yield path, f"a link to no place of its page: {link}"


def search(browser, site, word, title, seconds=10):
    """Types the word into the field and clicks on the first result. A sentence if that does not lead to the page."""
    browser.screen(1440, "light")
    browser.open((site / "index.html").as_uri())
    browser.run("document.querySelector('#MSearchField').focus()")
    for letter in word:
        for kind in ("keyDown", "keyUp"):
            browser.call("Input.dispatchKeyEvent", type=kind, key=letter, **({"text": letter} if kind == "keyDown" else {}))
    end = time.time() + seconds
    while time.time() < end:
        time.sleep(0.2)
        if title in browser.run("document.readyState == 'complete' ? document.title : ''"):
            return None
        x, y, shown = browser.run("(r => [r.x, r.y, r.height])(document.querySelector('#MSearchResults').getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased") if shown else ():
            browser.call("Input.dispatchMouseEvent", type=kind, x=x + 25, y=y + 15, button="left", clickCount=1)
    return f"searching for '{word}' does not lead to '{title}', but to '{browser.run('document.title')}'"


def examine_all(files):
    """What examine() returns, by file."""
    with contextlib.closing(Browser()) as browser:
        return {file: examine(browser, file) for file in files}


def test(site):
    files, processors = sorted(site.glob("*.html")), len(os.sched_getaffinity(0))
    with multiprocessing.Pool(processors) as pool:
        parts = pool.map(examine_all, [files[i::processors] for i in range(processors)])
    examined = {file: found for part in parts for file, found in part.items()}
    failures = [(page, fault) for page, (faults, _) in examined.items() for fault in faults]
    pages = {page: read for page, (_, read) in examined.items()}
    failures += broken_links(pages)
    lessons = [file for file in ROOT.glob("steps/[0-9]*/README.md") if "(PREV -" not in (file.parent / "CMakeLists.txt").read_text()]
    diffs = sum(read["diff"] for read in pages.values())
    formulas = sum(read["formulas"] for read in pages.values())
    if diffs != len(lessons):
        failures.append((site, f"{diffs} pages have a diff; {len(lessons)} lessons have a step before them"))
    if not formulas:
        failures.append((site, "no page has a formula"))
    with contextlib.closing(Browser(hidden=False)) as browser:
        if fault := search(browser, site, "33 pingpong", "33 pingpong"):
            failures.append((site / "index.html", fault))
        if not search(browser, site, "nobody wrote this", "33 pingpong", 2):
            failures.append((site / "index.html", "searching finds what is not there"))
    for page, fault in failures:
        print(f"{page.name}: {fault}")
    print(f"{len(pages)} pages, {formulas} formulas, {diffs} diffs, {len(failures)} faults")
    return not failures and len(pages) > 0


# A page with one fault each, and a word of the sentence that must come.
FAULTY = {
    "console": "<script>console.error('trouble')</script>",
    "exception": "<script>nobody_defined_this()</script>",
    "no picture": "<img src='gone.png'>",
    "asks the network": "<img src='http://example.org/picture.png'>",
    "link to nothing": "<a href='gone.html'>here</a>",
    "link to no place": "<a href='#gone'>here</a>",
    "formula": "<p>\\(x^2\\)</p>",
    "wider than the screen": "<div style='width: 2000px'>wide</div>",
    "390 pixels: the text is": "<div id='doc-content' style='overflow: auto'><div style='width: 700px'>wide on a telephone</div></div>",
    "light: 'pale'": "<p style='color: #aaa'>pale</p>",
    "dark: 'dim'": "<style>@media (prefers-color-scheme: dark) { body { background: black } }</style><p>dim</p>",
    "diff without colours": "<pre class='diff'><span class='added'>+</span> <span class='removed'>-</span></pre>",
    None: "<p>nothing is wrong</p>",
}


def self_test():
    right = True
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Browser()) as browser:
        for word, text in FAULTY.items():
            page = pathlib.Path(folder, "page.html")
            page.write_text(f"<!DOCTYPE html><meta charset='utf-8'><meta name='viewport' content='width=device-width'><title>page</title><div class='contents'>{text}</div>")
            faults, read = examine(browser, page)
            faults += [fault for _, fault in broken_links({page: read})]
            seen = any(word in fault for fault in faults) if word else not faults
            print(f"{'seen' if seen else 'NOT SEEN'}: {word or 'no fault'}: {'; '.join(faults)}")
            right &= seen
    return right


def pictures(site, folder, names):
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(Browser(hidden=False)) as browser:
        for name in names:
            for width in WIDTHS:
                for scheme in ("light", "dark"):
                    browser.screen(width, scheme)
                    browser.open((site / name).as_uri())
                    browser.run(READ)
                    picture = browser.call("Page.captureScreenshot")["data"]
                    (folder / f"{pathlib.Path(name).stem}-{width}-{scheme}.png").write_bytes(base64.b64decode(picture))


def main():
    if not CHROMIUM:
        print("Chromium is not installed, so nobody has looked at the site:  sudo apt-get install chromium")
        return 77
    if sys.argv[1] == "--self-test":
        return 0 if self_test() else 1
    site = pathlib.Path(sys.argv[1]).resolve()
    if not (site / "index.html").is_file():
        print(f"There is no site in {site}.")
        return 77
    if "--pictures" in sys.argv:
        pictures(site, pathlib.Path(sys.argv[3]), sys.argv[4:])
        return 0
    return 0 if test(site) else 1


sys.exit(main())
