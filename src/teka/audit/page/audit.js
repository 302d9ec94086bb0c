"use strict";
// Shows the example images as the model saw them at every shift, with its predictions.
(() => {
  const RIGHT = "#dcebf7", WRONG = "#b32413", MISSING = "#e3e7ec", INK = "#1c2430";
  const CELL = 10;

  const step = (value) => (value === 0 ? "0" : (value > 0 ? "+" : "−") + Math.abs(value));
  const shiftWords = (dy, dx) =>
    [["dx", dx], ["dy", dy]].filter(([, value]) => value !== 0).map(([name, value]) => `${name} ${step(value)}`)
      .join(", ") || "unshifted";
  // Only labels tell what is correct. Without one, a prediction can only be changed.
  const marked = (name, image, wrong) =>
    image.label === null ? (wrong ? `${name}, changed` : name) : `${name} ${wrong ? "✗" : "✓"}`;
  const percent = (share) => `${(100 * share).toFixed(1)} %`;

  // Examples of the same pixels and movement become one image with the predictions of each model.
  const groupByImage = (content) => {
    const images = new Map();
    for (const example of content.examples) {
      const group = JSON.stringify(example.movement);
      const key = [group, example.index, example.image].join();
      if (!images.has(key)) {
        const bytes = Uint8Array.from(atob(content.pixels[example.image]), (character) => character.charCodeAt(0));
        images.set(key, { ...example, group, bytes, predictions: [] });
      }
      images.get(key).predictions.push({
        model: example.model,
        shifts: content.shifts[example.shifts],
        classes: example.predictions,
        probabilities: example.probabilities,
      });
    }
    return [...images.values()];
  };

  // For each pixel that is seen along one axis, the pixel it came from, or −1 where background enters.
  const sourcePixels = (mode, side, seen, shift) =>
    Array.from({ length: seen }, (_, index) => {
      if (mode === "crop") return Math.floor((side - seen) / 2) - shift + index;
      const from = index - shift;
      if (mode === "zero") return from >= 0 && from < side ? from : -1;
      if (mode === "reflect") {
        const last = side - 1;
        if (last === 0) return 0;
        return last - Math.abs((((from % (2 * last)) + 2 * last) % (2 * last)) - last);
      }
      return ((from % side) + side) % side;
    });

  const moveByWholePixels = (image, dy, dx) => {
    const [height, width] = image.movement.seen;
    const rows = sourcePixels(image.movement.mode, image.height, height, dy);
    const columns = sourcePixels(image.movement.mode, image.width, width, dx);
    const channels = image.channels;
    const moved = new Float64Array(height * width * channels);
    let at = 0;
    for (const row of rows) {
      for (const column of columns) {
        for (let channel = 0; channel < channels; channel += 1) {
          moved[at] = row < 0 || column < 0
            ? image.movement.background[channel]
            : image.bytes[(row * image.width + column) * channels + channel];
          at += 1;
        }
      }
    }
    return moved;
  };

  // Fractions are interpolated along one axis after the other, as mode "bilinear" does.
  const move = (image, dy, dx) => {
    const [down, right] = [Math.floor(dy), Math.floor(dx)];
    const total = new Float64Array(image.movement.seen[0] * image.movement.seen[1] * image.channels);
    for (const [stepDown, weightDown] of [[down, 1 - (dy - down)], [down + 1, dy - down]]) {
      for (const [stepRight, weightRight] of [[right, 1 - (dx - right)], [right + 1, dx - right]]) {
        const weight = weightDown * weightRight;
        if (weight === 0) continue;
        moveByWholePixels(image, stepDown, stepRight).forEach((level, at) => { total[at] += weight * level; });
      }
    }
    return total;
  };

  const draw = (canvas, image, dy, dx) => {
    const [height, width] = image.movement.seen;
    canvas.width = width;
    canvas.height = height;
    const levels = move(image, dy, dx);
    const context = canvas.getContext("2d", { willReadFrequently: true });
    const shown = context.createImageData(width, height);
    const channels = image.channels;
    for (let cell = 0; cell < height * width; cell += 1) {
      for (let channel = 0; channel < 3; channel += 1) {
        shown.data[4 * cell + channel] = Math.round(levels[cell * channels + (channels === 1 ? 0 : channel)]);
      }
      shown.data[4 * cell + 3] = 255;
    }
    context.putImageData(shown, 0, 0);
  };

  const startViewer = (viewer, models, images) => {
    const part = (name) => viewer.querySelector(`[data-part="${name}"]`);
    const parts = Object.fromEntries(
      ["thumbnails", "canvas", "caption", "dx", "dy", "dx-value", "dy-value", "home", "next", "predictions", "status", "maps", "note"]
        .map((name) => [name, part(name)]));
    const key = (dy, dx) => `${dy} ${dx}`;
    const ascending = (values) => [...new Set(values)].sort((one, other) => one - other);
    let image = null, dy = 0, dx = 0;

    // The name of a class in the data of a model.
    const named = (model, index) => models[model].classes?.[index] ?? String(index);
    const labelled = (one) => (one.label === null ? "" : `, class ${named(one.predictions[0].model, one.label)}`);
    const isWrong = (prediction, at) => prediction.classes[at] !== (image.label === null ? prediction.unshifted : image.label);

    const choose = (index) => {
      image = images[index];
      const evaluated = image.predictions.flatMap((prediction) => prediction.shifts);
      image.places = new Map(evaluated.map((shift) => [key(...shift), shift]));
      image.downs = ascending(evaluated.map((shift) => shift[0]));
      image.rights = ascending(evaluated.map((shift) => shift[1]));
      for (const prediction of image.predictions) {
        prediction.places = new Map(prediction.shifts.map((shift, at) => [key(...shift), at]));
        prediction.unshifted = prediction.classes[prediction.places.get(key(0, 0))];
      }
      parts.dx.max = image.rights.length - 1;
      parts.dy.max = image.downs.length - 1;
      parts.dx.disabled = image.rights.length < 2;
      parts.dy.disabled = image.downs.length < 2;
      const whole = image.places.size === image.downs.length * image.rights.length;
      parts.note.textContent = (whole ? "" : "Not every pair of steps was evaluated. Moving one slider moves the other to the nearest evaluated pair. ")
        + (image.movement.mode === "fourier" ? "The model saw fractional steps made by the Fourier transform; the picture shows linear interpolation." : "");
      parts.note.hidden = parts.note.textContent === "";
      viewer.querySelectorAll("[data-image]").forEach((button) => {
        button.setAttribute("aria-pressed", String(Number(button.dataset.image) === index));
      });
      makeRows();
      show(0, 0);
    };

    const makeRows = () => {
      parts.predictions.replaceChildren();
      parts.maps.replaceChildren();
      models.forEach((model, at) => {
        const prediction = image.predictions.find((one) => one.model === at);
        const row = parts.predictions.insertRow();
        const head = document.createElement("th");
        head.scope = "row";
        const name = document.createElement("span");
        name.textContent = model.name;
        name.style.borderLeftColor = model.color;
        head.append(name);
        row.append(head);
        if (!prediction) {
          const cell = row.insertCell();
          cell.colSpan = 2;
          cell.textContent = "not among the examples of this model";
          return;
        }
        prediction.cells = [row.insertCell(), row.insertCell()];
        const wrong = prediction.classes.filter((_, place) => isWrong(prediction, place)).length;
        const words = `${image.label === null ? "changed" : "wrong"} at ${wrong} of ${prediction.classes.length} shifts`;
        const figure = document.createElement("figure");
        const map = document.createElement("canvas");
        map.setAttribute("role", "img");
        map.setAttribute("aria-label", `${model.name}: ${words}`);
        map.width = CELL * image.rights.length;
        map.height = CELL * image.downs.length;
        map.addEventListener("pointerdown", (event) => {
          const box = map.getBoundingClientRect();
          const right = Math.floor(((event.clientX - box.left) / box.width) * image.rights.length);
          const down = Math.floor(((event.clientY - box.top) / box.height) * image.downs.length);
          const place = [image.downs[down], image.rights[right]];
          if (image.places.has(key(...place))) show(...place);
        });
        const caption = document.createElement("figcaption");
        caption.textContent = `${model.name}: ${words}`;
        figure.append(map, caption);
        parts.maps.append(figure);
        prediction.map = map;
      });
    };

    const drawMap = (prediction) => {
      const context = prediction.map.getContext("2d");
      image.downs.forEach((down, row) => {
        image.rights.forEach((right, column) => {
          const at = prediction.places.get(key(down, right));
          context.fillStyle = at === undefined ? MISSING : isWrong(prediction, at) ? WRONG : RIGHT;
          context.fillRect(column * CELL, row * CELL, CELL, CELL);
        });
      });
      const [x, y] = [image.rights.indexOf(dx) * CELL, image.downs.indexOf(dy) * CELL];
      for (const [color, width] of [["#ffffff", 5], [INK, 2.5]]) {
        context.strokeStyle = color;
        context.lineWidth = width;
        context.strokeRect(x + 1.25, y + 1.25, CELL - 2.5, CELL - 2.5);
      }
    };

    const show = (down, right) => {
      dy = down;
      dx = right;
      draw(parts.canvas, image, dy, dx);
      const words = shiftWords(dy, dx);
      const what = `image ${image.index}${labelled(image)}`;
      parts.canvas.setAttribute("aria-label", `Test ${what}, mode ${image.movement.mode}, ${words}`);
      parts.caption.textContent = `${what[0].toUpperCase()}${what.slice(1)} · mode ${image.movement.mode} · ${words}`;
      for (const [name, values, value] of [["dx", image.rights, dx], ["dy", image.downs, dy]]) {
        parts[name].value = values.indexOf(value);
        parts[name].setAttribute("aria-valuetext", `${step(value)} pixels`);
        parts[`${name}-value`].textContent = step(value);
      }
      const said = [];
      for (const prediction of image.predictions) {
        const at = prediction.places.get(key(dy, dx));
        const [given, probability] = prediction.cells;
        drawMap(prediction);
        if (at === undefined) {
          given.textContent = "not evaluated at this shift";
          given.className = probability.textContent = "";
          continue;
        }
        const wrong = isWrong(prediction, at);
        const verdict = image.label === null ? (wrong ? "changed" : "unchanged") : (wrong ? "wrong" : "correct");
        const name = named(prediction.model, prediction.classes[at]);
        given.textContent = marked(name, image, wrong);
        given.className = wrong ? "wrong" : "right";
        given.setAttribute("aria-label", `${name}, ${verdict}`);
        probability.textContent = percent(prediction.probabilities[at]);
        said.push(`${models[prediction.model].name} predicts ${name} with ${percent(prediction.probabilities[at])}, ${verdict}`);
      }
      parts.status.textContent = `${words}: ${said.join("; ")}`;
    };

    // The evaluated pair that keeps the step just chosen and changes the other as little as possible.
    const nearest = (kept, value, other) =>
      [...image.places.values()].filter((shift) => shift[kept] === value)
        .reduce((best, shift) => (Math.abs(shift[1 - kept] - other) < Math.abs(best[1 - kept] - other) ? shift : best));

    parts.dx.addEventListener("input", () => show(...nearest(1, image.rights[Number(parts.dx.value)], dy)));
    parts.dy.addEventListener("input", () => show(...nearest(0, image.downs[Number(parts.dy.value)], dx)));
    parts.home.addEventListener("click", () => show(0, 0));
    parts.next.addEventListener("click", () => {
      // From the nearest to the farthest, so that the smallest such shift comes first.
      const places = [...image.places.values()].sort((one, other) => Math.hypot(...one) - Math.hypot(...other));
      const start = places.findIndex((shift) => shift[0] === dy && shift[1] === dx);
      const order = [...places.slice(start + 1), ...places.slice(0, start + 1)];
      const found = order.find((shift) => image.predictions.some((prediction) => {
        const at = prediction.places.get(key(...shift));
        return at !== undefined && isWrong(prediction, at);
      }));
      if (found) show(...found);
    });

    for (const name of new Set(images.map((one) => one.group))) {
      const { mode } = JSON.parse(name);
      const group = document.createElement("div");
      group.setAttribute("role", "group");
      group.setAttribute("aria-label", `Images moved in mode ${mode}`);
      const head = document.createElement("span");
      head.textContent = mode;
      group.append(head);
      images.forEach((one, index) => {
        if (one.group !== name) return;
        const button = document.createElement("button");
        button.type = "button";
        button.dataset.image = index;
        button.setAttribute("aria-label", `Image ${one.index}${labelled(one)}, mode ${mode}`);
        const canvas = document.createElement("canvas");
        draw(canvas, one, 0, 0);
        button.append(canvas);
        button.addEventListener("click", () => choose(index));
        group.append(button);
      });
      parts.thumbnails.append(group);
    }
    viewer.hidden = false;
    document.getElementById("without-script").hidden = true;
    choose(0);
  };

  // Moves an image along dx and back, then along dy, beside the prediction of each model.
  const startStrip = (strip, models, [image]) => {
    const part = (name) => strip.querySelector(`[data-strip="${name}"]`);
    const evaluated = image.predictions[0].shifts;
    const path = [1, 0].flatMap((axis) => {
      const there = evaluated.filter((shift) => shift[1 - axis] === 0 && shift[axis] >= 0).sort((one, other) => one[axis] - other[axis]);
      const back = evaluated.filter((shift) => shift[1 - axis] === 0 && shift[axis] < 0).sort((one, other) => other[axis] - one[axis]);
      return [...there, ...there.slice(0, -1).reverse(), ...back, ...back.slice(0, -1).reverse()];
    });
    const predictions = image.predictions.map((prediction) => {
      const line = document.createElement("li");
      if (models.length > 1) line.append(document.createElement("span"), " ");
      if (models.length > 1) line.firstChild.textContent = models[prediction.model].name;
      line.append(document.createElement("b"));
      part("predictions").append(line);
      const places = new Map(prediction.shifts.map((shift, at) => [String(shift), at]));
      return { ...prediction, line, places, unshifted: prediction.classes[places.get("0,0")] };
    });
    const show = (at) => {
      const [dy, dx] = path[at];
      const words = shiftWords(dy, dx);
      draw(part("canvas"), image, dy, dx);
      part("canvas").setAttribute("aria-label", `Test image ${image.index}, ${words}`);
      part("shift").textContent = words;
      for (const { model, classes, probabilities, line, places, unshifted } of predictions) {
        const place = places.get(String([dy, dx]));
        const right = place === undefined || classes[place] === (image.label === null ? unshifted : image.label);
        const name = place === undefined ? "–" : models[model].classes?.[classes[place]] ?? String(classes[place]);
        line.lastChild.textContent = place === undefined ? name : `${marked(name, image, !right)} ${percent(probabilities[place])}`;
        line.className = right ? "right" : "wrong";
      }
    };
    let at = 0, timer = null;
    const play = (moving) => {
      clearInterval(timer);
      timer = moving ? setInterval(() => show((at = (at + 1) % path.length)), 450) : null;
      part("play").textContent = moving ? "Stop" : "Move";
    };
    part("play").addEventListener("click", () => play(timer === null));
    strip.hidden = false;
    show(0);
    play(!window.matchMedia("(prefers-reduced-motion: reduce)").matches);
    window.addEventListener("beforeprint", () => play(false));
  };

  const examples = document.getElementById("example-data");
  if (examples) {
    const content = JSON.parse(examples.textContent);
    const images = groupByImage(content);
    startViewer(document.getElementById("viewer"), content.models, images);
    startStrip(document.getElementById("strip"), content.models, images);
  }
  // Collapsed parts are printed too, except tables whose numbers are in a chart.
  window.addEventListener("beforeprint", () => {
    document.querySelectorAll("details[data-print]:not([open])").forEach((details) => { details.open = true; details.dataset.opened = ""; });
  });
  window.addEventListener("afterprint", () => {
    document.querySelectorAll("details[data-opened]").forEach((details) => { details.open = false; delete details.dataset.opened; });
  });
})();
