// Pages work without this file: it keeps a form when a field changes, and looks how far a job is.
"use strict";

const parse = (text) => new DOMParser().parseFromString(text, "text/html").body.firstElementChild;

async function fetched(url, options) {
  const answer = await fetch(url, options);
  return { ok: answer.ok, text: await answer.text() };
}

// Puts a part of a page in the place of the one with its id; the field that has the keyboard keeps it.
function put(id, text) {
  const old = document.getElementById(id), fresh = parse(text);
  if (!old || !fresh) return;
  const active = document.activeElement?.id, opened = old.querySelectorAll("details");
  const kept = fresh.querySelectorAll("details");
  kept.forEach((details, place) => { if (opened[place]?.open) details.open = true; });
  old.replaceWith(fresh);
  if (active) document.getElementById(active)?.focus({ preventScroll: true });
  begin(fresh);
}

function say(form, text) {
  form.querySelector(".live-problem")?.remove();
  if (text) form.insertAdjacentElement("beforeend", Object.assign(document.createElement("p"), { className: "bad live-problem", textContent: text }));
}

const waiting = new Map();

async function keep(form) {
  const id = form.dataset.live, turn = (waiting.get(id) ?? 0) + 1;
  waiting.set(id, turn);
  try {
    const { ok, text } = await fetched(form.action + "?live", { method: "POST", body: new URLSearchParams(new FormData(form)) });
    if (waiting.get(id) !== turn) return;
    if (!ok) return say(form, parse(text)?.textContent ?? text);
    say(form, "");
    put(id, text);
    document.getElementById(id)?.classList.add("kept");
    const then = document.getElementById(form.dataset.then);
    if (then) put(then.id, (await fetched(then.dataset.url)).text);
  } catch { say(form, "Not kept: the studio does not answer. Start dpgen studio again, and open the address that it prints."); }
}

async function poll(part) {
  const url = part.dataset.poll;
  try {
    const { ok, text } = await fetched(url);
    if (!document.body.contains(part)) return;
    if (ok && parse(text)?.hasAttribute("data-ended")) return location.reload();
    if (ok) return put(part.id, text);
  } catch { /* The job goes on without a server; a later look may find one. */ }
  setTimeout(() => poll(part), 3000);
}

async function upload(input) {
  const file = input.files[0], bar = input.parentElement.querySelector("progress"), problem = document.getElementById("upload-problem");
  const name = document.getElementById("name");
  if (!file || !name.reportValidity()) return void (input.value = "");
  const request = new XMLHttpRequest();
  request.open("POST", input.dataset.upload);
  request.setRequestHeader("x-case", encodeURIComponent(name.value));
  request.setRequestHeader("x-file", encodeURIComponent(file.name));
  request.upload.onprogress = (event) => { bar.hidden = false; bar.value = 100 * event.loaded / event.total; };
  request.onload = () => {
    if (request.status === 200) return void (location.href = request.responseText);
    problem.hidden = false;
    problem.textContent = new DOMParser().parseFromString(request.responseText, "text/html").querySelector(".bad")?.textContent ?? request.responseText;
  };
  request.onerror = () => { problem.hidden = false; problem.textContent = "The file was not copied: the studio does not answer."; };
  request.send(file);
}

function begin(root) {
  const all = (selector) => [...(root.matches?.(selector) ? [root] : []), ...root.querySelectorAll(selector)];
  for (const part of all("[data-poll]")) setTimeout(() => poll(part), 1000);
  for (const part of all("[data-load]")) fetched(part.dataset.load).then(({ text }) => put(part.id, text));
  for (const form of all("form[data-live]")) {
    form.addEventListener("change", () => keep(form));
    form.addEventListener("submit", (event) => { event.preventDefault(); keep(form); });
  }
  for (const details of all("details[data-more]")) {
    details.addEventListener("toggle", async () => {
      if (!details.open || details.querySelector(".fields")) return;
      details.append(parse((await fetched(details.dataset.more)).text));
    });
  }
  for (const slider of all("input[data-for]")) {
    const field = document.getElementById(slider.dataset.for);
    slider.hidden = false;
    slider.addEventListener("input", () => { field.value = slider.value; });
    field.addEventListener("input", () => { slider.value = field.value; });
  }
  for (const input of all("input[data-upload]")) {
    input.closest(".upload").hidden = false;
    input.addEventListener("change", () => upload(input));
  }
}

document.documentElement.classList.add("js");
begin(document);
