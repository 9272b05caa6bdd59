"use strict";
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const units = ["kB", "MB", "GB", "TB", "PB"];
  function digits(v) { return v >= 99.95 ? v.toFixed(0) : v >= 9.995 ? v.toFixed(1) : v.toFixed(2); }
  function bytes(n) {
    if (n < 1000) return n + " B";
    let v = n / 1000, u = 0;
    while (v >= 999.5 && u + 1 < units.length) { v /= 1000; u++; }
    return digits(v) + " " + units[u];
  }
  function duration(us) {
    return us >= 999500 ? digits(us / 1e6) + " s" : us >= 999.5 ? digits(us / 1000) + " ms" : us + " µs";
  }
  function element(name, text, className) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  }
  const count = n => n.toLocaleString("en-US");

  // Where a run's operations stand in a picture: segments of run (or slot), first, count, x0, x1.
  function segmentsOf(text) {
    return text.split(";").filter(Boolean).map(t => {
      const [run, first, count, x0, x1] = t.split(",").map(Number);
      return { run, first, count, x0, x1 };
    });
  }
  function beginOf(run, index) { return index === 0 ? run.begin_us : run.end_us[index - 1]; }
  function xOf(segment, run, k, byTime) {
    const span = run.end_us[segment.first + segment.count - 1] - beginOf(run, segment.first);
    const part = byTime && span > 0 ? (beginOf(run, segment.first + k) - beginOf(run, segment.first)) / span : k / segment.count;
    return segment.x0 + (segment.x1 - segment.x0) * part;
  }
  function indexAt(segment, run, x, byTime) {
    let low = 0, high = segment.count - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (xOf(segment, run, middle, byTime) <= x) low = middle; else high = middle - 1;
    }
    return segment.first + low;
  }

  // A figure whose picture can be pointed at. show(x, isByTime, segments) fills the details and returns where the cursor goes.
  function interactive(figure, show, step, home) {
    const svgs = [...figure.querySelectorAll("svg")];
    const parts = new Map(svgs.map(svg => {
      const hover = svg.querySelector(".hover");
      const [left, top, right, bottom] = hover.dataset.frame.split(",").map(Number);
      const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
      line.setAttribute("class", "cursor");
      line.setAttribute("y1", top);
      line.setAttribute("y2", bottom);
      line.style.display = "none";
      hover.appendChild(line);
      return [svg, { left, right, line, byTime: svg.classList.contains("by-time"), segments: hover.dataset.segments.split("|").map(segmentsOf) }];
    }));
    let at = null;
    const visible = () => svgs.find(svg => svg.getBoundingClientRect().width > 0);
    function draw() {
      const svg = visible(), part = parts.get(svg);
      if (!part) return;
      const x = show(at, part);
      part.line.style.display = x === null ? "none" : "";
      if (x !== null) { part.line.setAttribute("x1", x); part.line.setAttribute("x2", x); }
    }
    for (const svg of svgs)
      for (const kind of ["pointermove", "pointerdown"])
        svg.addEventListener(kind, event => {
          const box = svg.getBoundingClientRect(), part = parts.get(svg);
          const x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
          at = step.find(Math.min(Math.max(x, part.left), part.right - .01), part);
          draw();
        });
    figure.tabIndex = 0;
    figure.addEventListener("keydown", event => {
      const part = parts.get(visible());
      const moved = { ArrowLeft: -1, ArrowRight: 1, PageUp: -25, PageDown: 25 }[event.key];
      if (moved !== undefined) at = step.move(at, moved, part);
      else if (event.key === "Home") at = step.find(part.left, part);
      else if (event.key === "End") at = step.find(part.right - .01, part);
      else if (event.key === "p" || event.key === "Escape") at = home === undefined ? null : home;
      else return;
      event.preventDefault();
      draw();
    });
    const tools = figure.querySelector(".tools");
    const peak = element("button", "show the peak");
    peak.type = "button";
    peak.addEventListener("click", () => { at = home; draw(); });
    const kinds = [["ops", "by operation"], ["time", "by time"], ["passing", "only what comes and goes"]];
    const axes = kinds.filter(([axis]) => axis !== "passing" || figure.querySelector(".passing")).map(([axis, label]) => {
      const button = element("button", label);
      button.type = "button";
      button.setAttribute("aria-pressed", axis === "ops");
      button.addEventListener("click", () => {
        figure.dataset.axis = axis;
        for (const other of axes) other.setAttribute("aria-pressed", other === button);
        if (step.rescale) at = step.rescale(at, home);
        draw();
      });
      return button;
    });
    if (home !== undefined) axes.push(peak);
    tools.prepend(...axes);
    if (home !== undefined) at = home;
    addEventListener("resize", draw);
    draw();
  }

  // ---- one run: a position is [run, operation]
  const one = document.querySelector("figure.one");
  if (one) {
    const timeline = data.timeline, runs = timeline.runs, passes = timeline.passes, order = [0, 2, 5, 1, 3, 4];
    const titles = ["parameters", "gradients", "optimizer state", "activations", "workspace", "data"];
    const detail = one.querySelector(".detail");
    const passOf = r => passes[runs[r].pass];
    const live = (r, i) => passOf(r).bytes.map((of, c) => of[i] + timeline.persistent[c]);
    let best = [0, 0], most = -1;
    runs.forEach((run, r) => passOf(r).phase.forEach((_, i) => {
      const sum = live(r, i).reduce((a, b) => a + b, 0);
      if (sum > most) { most = sum; best = [r, i]; }
    }));
    const show = (at, part) => {
      const [r, i] = at, run = runs[r], pass = passOf(r), now = live(r, i), sum = now.reduce((a, b) => a + b, 0);
      const what = pass.purpose === "training" ? "update " + run.update : "evaluation";
      detail.replaceChildren();
      const head = element("p");
      head.append(element("b", bytes(sum)), ` alive · ${what} · ${timeline.phases[pass.phase[i]]} · operation ${count(i + 1)} of ${count(pass.phase.length)}` +
        (r === best[0] && i === best[1] ? " · the peak" : ""));
      const op = element("p");
      op.append(element("code", timeline.operations[pass.operation[i]]), " of ", element("b", timeline.layers[pass.layer[i]]), ` · took ${duration(run.end_us[i] - beginOf(run, i))}`);
      const list = element("ul", undefined, "legend");
      for (const c of order) {
        if (!now[c]) continue;
        const item = element("li");
        item.append(element("i", undefined, "b" + c), titles[c] + " " + bytes(now[c]));
        list.append(item);
      }
      detail.append(head, op, list);
      const segment = part.segments[0].find(s => s.run === r && i >= s.first && i < s.first + s.count);
      return segment ? (xOf(segment, run, i - segment.first, part.byTime) + xOf(segment, run, i - segment.first + 1, part.byTime)) / 2 : null;
    };
    interactive(one, show, {
      find: (x, part) => {
        const all = part.segments[0], segment = all.find(s => x < s.x1) || all[all.length - 1];
        return [segment.run, indexAt(segment, runs[segment.run], x, part.byTime)];
      },
      move: ([r, i], by) => {
        i += by;
        while (i < 0 && r > 0) i += passOf(--r).phase.length;
        while (i >= passOf(r).phase.length && r + 1 < runs.length) i -= passOf(r++).phase.length;
        return [r, Math.min(Math.max(i, 0), passOf(r).phase.length - 1)];
      },
    }, best);
  }

  // ---- several runs: a position is a place on the axis
  const many = document.querySelector("figure.many");
  if (many) {
    const detail = many.querySelector(".detail");
    const show = (x, part) => {
      if (x === null) return null;
      const list = element("table"), body = element("tbody");
      data.runs.forEach((run, n) => {
        const row = element("tr"), name = element("td");
        name.append(element("i", undefined, "l k" + n % 6), run.name + " (" + run.mode + ")");
        row.append(name);
        const segment = (part.segments[n] || []).find(s => x >= s.x0 && x < s.x1);
        if (segment) {
          const slot = run.slots[segment.run], pass = run.passes[slot.pass], i = indexAt(segment, slot, x, part.byTime);
          row.append(element("td", bytes(pass.total[i]), "n"));
          const what = element("td");
          what.append(`update ${slot.update} · `, element("code", run.operations[pass.operation[i]]), " of " + run.layers[pass.layer[i]]);
          row.append(what);
        } else row.append(element("td", "-", "n"), element("td", part.byTime ? "done" : "has no such phase"));
        body.append(row);
      });
      list.append(body);
      detail.replaceChildren(list);
      return x;
    };
    interactive(many, show, {
      find: x => x,
      move: (x, by, part) => Math.min(Math.max((x === null ? part.left : x) + by, part.left), part.right - .01),
      rescale: () => null,
    });
  }
})();
