"""The pages of the studio: each shows what stands in the files of a case, and starts the command that it names.

No page computes: what a budget buys is told by `runs/budget.py`, what a schema lacks by `data/tables/`, and all else has
been printed or written by a command of `dpgen`.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

import jinja2
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from lightning_dpgen.common.folders import make_folder, make_private, owner_only, read_plain
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.schema_keys import KINDS
from lightning_dpgen.privacy.errors import BudgetTooSmall, DamagedState, LedgerError, NotInstalled
from lightning_dpgen.release.files import REPORT, NotARelease
from lightning_dpgen.release.pages.report import TEMPLATES
from lightning_dpgen.release.rows.tables import FORMATS
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.run import check_privacy, load_settings_without_slow_defaults, with_default_bins
from lightning_dpgen.specs.usage_error import UsageError, describe_os_error
from lightning_dpgen.studio.case import ALL_SETTINGS, SETTINGS, STUDIES, Case, Cases, NotThere, Run
from lightning_dpgen.studio.guard import REPORT_POLICY
from lightning_dpgen.studio.job import spell
from lightning_dpgen.studio.schema_form import SchemaForm

OWN_TEMPLATES = Path(__file__).with_name("templates")
# A form of 200 columns sends a few kilobytes for each of them.
_LARGEST_FORM, _MOST_FIELDS = 2**22, 20_000
_MOST_FILES = 500
_MISTAKES = (
    UsageError, BadSchema, BadRecords, BudgetTooSmall, DamagedState, LedgerError, NotInstalled, NotARelease, OSError,
)  # fmt: skip
# Settings are composed by Hydra, which keeps what it composes in one place.
_planning = threading.Lock()


class Told:
    """A reporter that keeps what it hears."""

    bar = False

    def __init__(self) -> None:
        self.said: list[str] = []
        self.warned: list[str] = []

    def say(self, text: str | None) -> None:
        self.said += [text.strip("\n")] if text else []

    def warn(self, text: str | None) -> None:
        self.warned += [text] if text else []


def make_app(cases: Cases, root: str) -> Starlette:
    """Return the application of the pages about some cases, below the path `root`; `Guard` stands before it."""
    pages = _Pages(cases, root)
    routes = [
        Route("/", pages.home),
        Route("/new", pages.begin, methods=["POST"]),
        Route("/upload", pages.upload, methods=["POST"]),
        Route("/studies", pages.studies),
        Route("/look.css", pages.look),
        Route("/studio.js", pages.script),
        Route("/case/{case}", pages.schema),
        Route("/case/{case}/draft", pages.draft, methods=["POST"]),
        Route("/case/{case}/column", pages.column, methods=["POST"]),
        Route("/case/{case}/open", pages.open_parts),
        Route("/case/{case}/more", pages.more),
        Route("/case/{case}/check", pages.check, methods=["POST"]),
        Route("/case/{case}/budget", pages.budget),
        Route("/case/{case}/settings", pages.settings, methods=["POST"]),
        Route("/case/{case}/plan", pages.plan),
        Route("/case/{case}/run", pages.begin_run, methods=["POST"]),
        Route("/case/{case}/run/{run}", pages.run),
        Route("/case/{case}/run/{run}/{act}", pages.act, methods=["POST"]),
        Route("/case/{case}/run/{run}/page/{page}", pages.report),
        Route("/case/{case}/run/{run}/{where}/{file}", pages.file),
        Route("/case/{case}/job/{job}", pages.job),
    ]
    handlers = dict.fromkeys(_MISTAKES, pages.mistake) | dict.fromkeys((HTTPException, NotThere), pages.missing)
    return Starlette(routes=[Mount(root, routes=routes)], exception_handlers=handlers)


class _Pages:
    """The handlers of all routes."""

    def __init__(self, cases: Cases, root: str) -> None:
        self._cases, self._root = cases, root
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader([OWN_TEMPLATES, TEMPLATES]),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals |= {"spell": spell, "root": root}

    async def home(self, request: Request) -> Response:
        return await self._page("home.html.jinja", cases=list(self._cases), roots=self._cases.roots, files=self._files())

    async def begin(self, request: Request) -> Response:
        """Make a case of a file or a query, and draft its schema, or take one that is there."""
        form = await _form(request)
        if url := form.get("url", "").strip():
            source = {"data.url": url, "data.query": form.get("query", "").strip()}
            source |= {"data.rows_independent": "true"} if form.get("independent") else {}
            self._cases.check_source(source)
        else:
            source = {"data.path": str(self._cases.checked(form.get("path", "")))}
        schema = form.get("schema", "").strip()
        content = None
        if schema:
            content = await run_in_threadpool(read_plain, self._cases.checked(schema), _LARGEST_FORM)
        case = self._cases.begin(form.get("name", "").strip(), source)
        if content is None:
            await self._draft(case)
        else:
            case.schema.write_bytes(content)
        return self._go(f"/case/{case.name}")

    async def upload(self, request: Request) -> Response:
        """Keep a file that a browser sends, for its owner alone, and make a case of it."""
        name, file = (unquote(request.headers.get(word, "")) for word in ("x-case", "x-file"))
        file = Path(file).name
        if not file or file.startswith(".") or not file.isprintable() or len(file) > 200:
            raise UsageError("file: expected one with a name, such as records.csv")
        case = self._cases.begin(name.strip())
        place = case.private / "upload" / file
        try:
            make_private(case.private)
            make_private(place.parent)
            with open(place, "wb", opener=owner_only) as out:
                async for part in request.stream():
                    await run_in_threadpool(out.write, part)
            case.keep(source={"data.path": str(place)})
        except (OSError, ClientDisconnect):
            # A part of a file is no file.
            shutil.rmtree(case.folder, ignore_errors=True)
            raise
        await self._draft(case)
        return PlainTextResponse(f"{self._root}/case/{case.name}")

    async def draft(self, request: Request) -> Response:
        case = self._case(request)
        await self._draft(case)
        return self._go(f"/case/{case.name}")

    async def _draft(self, case: Case) -> None:
        """Start `dpgen schema`, which reads names and types alone."""
        words = ["schema", case.source["data.path"]] if "data.path" in case.source else ["schema", case.source["data.url"]]
        if "data.query" in case.source:
            words += ["--query", case.source["data.query"]]
        words += ["--rows-independent"] * ("data.rows_independent" in case.source)
        await self._start(case, "schema", [*words, "-o", str(case.schema)])

    async def _start(self, case: Case, what: str, *commands: list[str]) -> None:
        """Start commands that read the records, which must still lie where the curator has named."""
        self._cases.check_source(case.source)
        await run_in_threadpool(case.start, what, *commands)

    async def schema(self, request: Request) -> Response:
        case = self._case(request)
        form, problem = None, ""
        if case.schema.exists():
            try:
                form = await run_in_threadpool(SchemaForm.read, case.schema)
            except BadSchema as error:
                problem = str(error)
        told = {"form": form, "problem": problem, "kinds": KINDS, "whole": "whole" in request.query_params}
        return await self._page("schema.html.jinja", case=case, **told, **self._check(case))

    async def column(self, request: Request) -> Response:
        """Keep the fields of one column, or of the whole table, and return them with what is wrong."""
        case, said = self._case(request), await _form(request)
        name = said.pop("column", "")

        def keep() -> SchemaForm:
            with case.locked():
                before = SchemaForm.read(case.schema)
                if name and name not in before.columns:
                    raise UsageError(f"{name}: is no column of the schema any more; load the page again")
                before.changed(name, said).write(case.schema)
                return SchemaForm.read(case.schema)

        form = await run_in_threadpool(keep)
        return await self._page("part.html.jinja", case=case, part=form.part(name), form=form, kinds=KINDS, whole=False)

    async def open_parts(self, request: Request) -> Response:
        case = self._case(request)
        form = await run_in_threadpool(SchemaForm.read, case.schema)
        return await self._page("open.html.jinja", case=case, form=form)

    async def more(self, request: Request) -> Response:
        """Return the empty keys of a column, or of the whole table."""
        form = await run_in_threadpool(SchemaForm.read, self._case(request).schema)
        name = request.query_params.get("column", "")
        if name and name not in form.columns:
            raise NotThere
        return await self._page("more.html.jinja", part=form.part(name), id=form.id(name))

    def _check(self, case: Case) -> dict[str, Any]:
        return {"check": case.check_words, "checking": case.job("check")}

    async def check(self, request: Request) -> Response:
        case = self._case(request)
        await self._start(case, "check", case.check_words)
        return self._go(f"/case/{case.name}#check")

    async def budget(self, request: Request) -> Response:
        case = self._case(request)
        return await self._page(
            "budget.html.jinja",
            case=case,
            groups=SETTINGS,
            given=case.settings,
            used=[name for name, text in case.settings.items() if text],
        )

    async def settings(self, request: Request) -> Response:
        """Keep the settings, and tell what they buy."""
        case, said = self._case(request), await _form(request)
        given = {setting.name: said[setting.name].strip() for setting in ALL_SETTINGS if setting.name in said}
        await run_in_threadpool(partial(case.keep, settings=given, **({"more": said["more"]} if "more" in said else {})))
        if "live" not in request.query_params:
            return self._go(f"/case/{case.name}/budget")
        return await self.plan(request)

    async def plan(self, request: Request) -> Response:
        case, told, problem, mark = self._case(request), Told(), "", ""
        commands: list[list[str]] = []
        try:
            run = case.next_run
            mark, commands = run.mark, run.commands
            await run_in_threadpool(_plan, case.words(), told)
        except _MISTAKES as error:
            problem = _said(error)
        said = {"told": told, "problem": problem, "mark": mark, "commands": commands}
        return await self._page("plan.html.jinja", case=case, **said)

    async def begin_run(self, request: Request) -> Response:
        """Start the run that a page has shown, once its settings are ones that a run would take."""
        case, said = self._case(request), await _form(request)
        self._cases.check_source(case.source)
        await run_in_threadpool(_plan, case.words(), Told())
        run = await run_in_threadpool(case.begin_run, said.get("mark", ""))
        return self._go(f"/case/{case.name}/run/{run.number}")

    async def run(self, request: Request) -> Response:
        run = self._run(request)
        evaluate = self._commands(run, "evaluate", {})[0]
        return await self._page(
            "run.html.jinja", case=run.case, run=run, job=run.job, evaluate=evaluate, formats=FORMATS, files=_files_of(run),
            evaluated=(run.folder.private / REPORT).is_file(), certificate=run.certificate,
        )  # fmt: skip

    async def act(self, request: Request) -> Response:
        """Stop a run, go on with it, or start a command about its release."""
        run, act, said = self._run(request), request.path_params["act"], await _form(request)
        if act == "stop":
            await run_in_threadpool(run.job.stop)
        elif act == "go-on":
            if not run.state.startswith(("interrupted", "ended without")):
                raise UsageError(f"run {run.number}: is {run.state}; there is nothing to go on with")
            await self._start(run.case, f"run-{run.number}", *run.job.commands)
        else:
            # A release needs no records to be verified or drawn from.
            start = partial(self._start, run.case) if act == "evaluate" else partial(run_in_threadpool, run.case.start)
            await start(f"{act}-{run.number}", *self._commands(run, act, said))
        anchor = "" if act in ("stop", "go-on") else f"#{act}"
        return self._go(f"/case/{run.case.name}/run/{run.number}{anchor}")

    def _commands(self, run: Run, act: str, said: Mapping[str, str]) -> list[list[str]]:
        """Return the commands of an act."""
        release, case = str(run.folder.release), run.case
        if act == "verify":
            return [["verify", release]]
        if act == "evaluate":
            return [["evaluate", release, "data=table", *case.source_words]]
        if act == "end":
            return [["stop", str(run.folder.root)]]
        if act == "sample":
            return [["sample", release, *self._sample_words(run, said)]]
        raise NotThere

    def _sample_words(self, run: Run, said: Mapping[str, str]) -> list[str]:
        ending = said.get("format", ".csv")
        if ending not in FORMATS:
            raise UsageError(f"format {ending}: expected one of {', '.join(FORMATS)}")
        given = said.get("given", "").strip()
        folder = run.case.completed if given else run.case.drawn
        (make_private if given else make_folder)(folder)
        last = max((int(path.stem.partition("-")[2]) for path in run.samples), default=0)
        words = ["-o", str(folder / f"{run.number}-{last + 1}{ending}")]
        if given:
            words += ["--given", str(self._cases.checked(given))]
        for option, name in (("-n", "n"), ("--seed", "seed"), ("--balance", "balance")):
            if (text := said.get(name, "").strip()) and not (given and name == "n"):
                words += [f"{option}={text}"] if option.startswith("--") else [f"{option}{text}"]
        return words + [f"--where={line.strip()}" for line in said.get("where", "").splitlines() if line.strip()]

    async def report(self, request: Request) -> Response:
        """Send a page that a command has written, which a browser shows in a frame without any right."""
        run, page = self._run(request), request.path_params["page"]
        places = {"report": run.folder.release / REPORT, "evaluation": run.folder.private / REPORT}
        if page not in places or not places[page].is_file():
            raise NotThere
        return FileResponse(places[page], headers={"content-security-policy": REPORT_POLICY})

    async def file(self, request: Request) -> Response:
        """Send a file of a release, or of records that were drawn, to be saved."""
        run, name = self._run(request), request.path_params["file"]
        listed = {"release": _files_of(run), "samples": run.samples}.get(request.path_params["where"], [])
        for path in listed:
            if path.name == name:
                return FileResponse(path, filename=name, media_type="application/octet-stream")
        raise NotThere

    async def job(self, request: Request) -> Response:
        """Return how far a job is, and what it has printed."""
        case, name = self._case(request), request.path_params["job"]
        job = case.job(name)
        if not job.exists:
            raise NotThere
        return await self._page("job.html.jinja", case=case, job=job, name=name)

    async def studies(self, request: Request) -> Response:
        found = await run_in_threadpool(_studies, self._cases.home / STUDIES)
        return await self._page("studies.html.jinja", studies=found, cases=list(self._cases))

    async def look(self, request: Request) -> Response:
        text = self._templates.get_template("studio.css.jinja").render()
        return Response(text, media_type="text/css")

    async def script(self, request: Request) -> Response:
        return FileResponse(OWN_TEMPLATES / "studio.js", media_type="text/javascript")

    async def mistake(self, request: Request, error: Exception) -> Response:
        """Say a mistake as the program would: in one line, which names the value and what was expected."""
        return await self._page("mistake.html.jinja", 422, text=_said(error))

    async def missing(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 404
        return await self._page("mistake.html.jinja", status, text="There is no such page.")

    async def _page(self, template: str, status: int = 200, **values: Any) -> Response:
        make = partial(self._templates.get_template(template).render, **values)
        return HTMLResponse(await run_in_threadpool(make), status)

    def _go(self, path: str) -> Response:
        """Send a browser on to a page, after a form."""
        return RedirectResponse(self._root + path, status_code=303)

    def _case(self, request: Request) -> Case:
        return self._cases[request.path_params["case"]]

    def _run(self, request: Request) -> Run:
        return self._case(request).run(request.path_params["run"])

    def _files(self) -> list[str]:
        """Return files of the named folders, by which a browser completes a path; those below are found by typing."""
        found = (path for root in self._cases.roots for path in sorted(root.iterdir()) if not path.name.startswith("."))
        return [str(path) for path in found if path.is_file() and str(path).isprintable()][:_MOST_FILES]


def _plan(words: list[str], told: Told) -> None:
    """Tell what a training would spend, as `dpgen budget` does; no record is read."""
    from lightning_dpgen.runs.budget import tell_budget

    with _planning:
        spec = load_settings_without_slow_defaults(words)
        check_privacy(spec)
        study = spec.privacy
        begun = study.study is None or (Path(study.study_folder) / f"{study.study}.jsonl").exists()
        if not begun and None in (study.study_epsilon, study.study_delta):
            raise UsageError(f"study {study.study}: begins with this run: give epsilon and delta of all its runs together")
        tell_budget(with_default_bins(spec), told)


def _studies(folder: Path) -> list[str]:
    from lightning_dpgen.privacy.studies.study import Study
    from lightning_dpgen.runs.studies import spent_so_far

    found = []
    for path in sorted(folder.glob("*.jsonl")):
        try:
            found.append(spent_so_far(Study(path)) or "")
        except (LedgerError, OSError, ValueError) as error:
            found.append(f"{path.stem}: {_said(error)}")
    return found


def _files_of(run: Run) -> list[Path]:
    return sorted(path for path in run.folder.release.iterdir() if path.is_file()) if run.folder.finished else []


def _said(error: Exception) -> str:
    return describe_os_error(error) if isinstance(error, OSError) else str(error)


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form.

    Raises:
        UsageError: for a form that is larger than any of ours.
    """
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LARGEST_FORM:
            raise UsageError("form: is larger than any of these pages; expected at most 4 MiB")
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise UsageError("form: expected fields in UTF-8, as a browser sends them") from None
    if any("\0" in text for _, text in pairs):
        raise UsageError("form: holds a sign of value 0, which is none of a text")
    return {name: text.replace("\r\n", "\n") for name, text in pairs}
