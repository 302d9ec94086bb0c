// Hides lines by their legend, and opens a figure large, where it is zoomed and saved as SVG, PNG or numbers.
(() => {
  const MARGIN = 12, ROW = 20, CHARACTER = 7, LARGEST = 8;
  const dialog = document.getElementById("enlarged");
  const place = dialog.querySelector(".enlarged");
  let figure = null, opener = null, gap = null, zoom = 1;

  const drawings = () => [...figure.querySelectorAll(".drawing")].filter((drawing) => drawing.getClientRects().length);
  const set = (element, attributes) => {
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };

  const startLegend = (entry) => {
    const button = set(document.createElement("button"), { type: "button", "aria-pressed": "true" });
    button.append(...entry.childNodes);
    entry.append(button);
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(shown));
      entry.closest("figure").querySelectorAll("g[data-line]").forEach((line) => {
        if (line.dataset.line === entry.dataset.line) set(line, { display: shown ? "inline" : "none" });
      });
    });
  };

  // What stands beside the axes stays in sight.
  const keepTicks = () => {
    const sight = place.getBoundingClientRect();
    for (const drawing of drawings()) {
      const { a: enlarged, e: left, f: top } = drawing.getScreenCTM();
      const [beside, below] = [drawing.querySelector(".ticks-left"), drawing.querySelector(".ticks-below")];
      const inside = place.contains(figure);
      const [x, y] = inside ? [(sight.left + 50 - left) / enlarged, Math.max(12, (sight.bottom - 12 - top) / enlarged)] : [0, Infinity];
      set(beside, { transform: `translate(${Math.max(0, x - beside.firstChild.getAttribute("x"))} 0)` });
      if (below) set(below, { transform: `translate(0 ${Math.min(0, y - below.firstChild.getAttribute("y"))})` });
    }
  };

  // The drawing grows, and its words and points stay as large as they are to be read.
  const fit = () => {
    place.style.setProperty("--zoom", zoom);
    for (const drawing of drawings()) {
      const share = place.contains(figure) ? Math.min(1, 1.15 / drawing.getScreenCTM().a) : 1;
      for (const point of drawing.querySelectorAll(".points path")) {
        point.dataset.place ??= point.getAttribute("transform");
        set(point, { transform: `${point.dataset.place} scale(${share})` });
      }
      for (const text of drawing.querySelectorAll("text")) {
        const [x, y] = [Number(text.getAttribute("x")), Number(text.getAttribute("y")) - 4];
        set(text, { transform: `translate(${x * (1 - share)} ${y * (1 - share)}) scale(${share})` });
      }
    }
    keepTicks();
  };

  // Keeps what lies at a place, a share of the region shown, where it is.
  const zoomTo = (wanted, [right, down] = [0.5, 0.5]) => {
    const [x, y] = [right * place.clientWidth, down * place.clientHeight];
    const [left, top] = [(place.scrollLeft + x) / zoom, (place.scrollTop + y) / zoom];
    zoom = Math.min(LARGEST, Math.max(1, wanted));
    fit();
    place.scrollTo(left * zoom - x, top * zoom - y);
  };

  const open = (one, button) => {
    [figure, opener, zoom] = [one, button, 1];
    gap = document.createElement("div");
    gap.style.height = `${figure.offsetHeight}px`;
    figure.replaceWith(gap);
    place.append(figure);
    document.getElementById("enlarged-name").textContent = figure.dataset.name;
    dialog.showModal();
    fit();
    place.focus();
  };

  dialog.addEventListener("close", () => {
    gap.replaceWith(figure);
    fit();
    opener.focus();
  });

  // One SVG of the figure as it is shown: its name, the entries of its legend, its drawings beside each other.
  const compose = () => {
    const shown = drawings().map((drawing) => [drawing.cloneNode(true), drawing.viewBox.baseVal]);
    const width = shown.reduce((sum, [, box]) => sum + box.width, 0) + 2 * MARGIN;
    const make = (name, attributes) => set(document.createElementNS(shown[0][0].namespaceURI, name), attributes);
    const root = make("svg", { width, "font-family": "system-ui, sans-serif", "font-size": 12, fill: "#1c2430" });
    const write = (words, x, y, attributes = {}) => { root.append(make("text", { x, y, ...attributes })); root.lastChild.textContent = words; };
    root.append(make("rect", { width: "100%", height: "100%", fill: "#fff" }));
    write(figure.dataset.name, MARGIN, ROW, { "font-weight": 700 });
    let [x, y] = [MARGIN, ROW];
    for (const entry of figure.querySelectorAll(".legend [aria-pressed=true]")) {
      const [swatch, room] = [entry.querySelector("svg").cloneNode(true), 50 + CHARACTER * entry.textContent.length];
      if (y === ROW || x + room > width) [x, y] = [MARGIN, y + ROW];
      root.append(set(swatch, { x, y: y - 10 }));
      write(entry.textContent, x + 40, y);
      x += room;
    }
    x = MARGIN;
    for (const [drawing, box] of shown) {
      drawing.querySelectorAll("text, [class^=ticks]").forEach((text) => text.removeAttribute("transform"));
      drawing.querySelectorAll("[data-place]").forEach((point) => set(point, { transform: point.dataset.place }));
      drawing.removeAttribute("style");
      root.append(set(drawing, { x, y: y + ROW / 2, width: box.width, height: box.height }));
      x += box.width;
    }
    const height = y + ROW / 2 + Math.max(...shown.map(([, box]) => box.height)) + MARGIN;
    return new XMLSerializer().serializeToString(set(root, { height, viewBox: `0 0 ${width} ${height}` }));
  };

  const save = (blob, ending) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = `${figure.dataset.name.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "")}.${ending}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  };

  const savePng = async () => {
    const picture = new Image();
    picture.src = `data:image/svg+xml,${encodeURIComponent(compose())}`;
    await picture.decode();
    const canvas = set(document.createElement("canvas"), { width: 2 * picture.width, height: 2 * picture.height });
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save(blob, "png"));
  };

  const actions = {
    smaller: () => zoomTo(zoom / 1.5),
    larger: () => zoomTo(zoom * 1.5),
    svg: () => save(new Blob([compose()], { type: "image/svg+xml" }), "svg"),
    png: savePng,
    csv: () => save(new Blob([figure.dataset.numbers], { type: "text/csv" }), "csv"),
    close: () => dialog.close(),
  };
  dialog.querySelectorAll("[data-do]").forEach((button) => button.addEventListener("click", actions[button.dataset.do]));
  dialog.addEventListener("keydown", (event) => {
    const act = { "+": "larger", "=": "larger", "-": "smaller", 0: "whole" }[event.key];
    if (act && !event.ctrlKey && !event.metaKey) (act === "whole" ? () => zoomTo(1) : actions[act])();
  });
  // Pinching a touchpad comes as this, too; without the key the wheel scrolls.
  place.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const box = place.getBoundingClientRect();
    zoomTo(zoom * Math.exp(-event.deltaY / 300), [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height]);
  }, { passive: false });
  place.addEventListener("scroll", keepTicks);
  place.addEventListener("pointermove", (event) => {
    if (event.pointerType === "mouse" && event.buttons === 1) place.scrollBy(-event.movementX, -event.movementY);
  });
  window.addEventListener("resize", () => { if (dialog.open) fit(); });
  window.addEventListener("beforeprint", () => dialog.close());

  document.querySelectorAll(".legend [data-line]").forEach(startLegend);
  document.querySelectorAll("figure[data-name]").forEach((one) => {
    const button = set(document.createElement("button"), { type: "button", class: "enlarge", "aria-label": `Enlarge, save: ${one.dataset.name}` });
    button.textContent = "⤢ Enlarge, save";
    button.addEventListener("click", () => open(one, button));
    one.append(button);
  });
})();
