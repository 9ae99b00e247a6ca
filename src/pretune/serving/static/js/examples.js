// Texts to start with, in the language of the interface where the model reads it, otherwise in English.

import { language } from "./strings.js";

const EXAMPLES = {
  en: {
    classify: [
      { text: "Ordered at eight in the morning with guests due at noon, and it was all there. You saved my birthday." },
      { text: "Where is my parcel? It was due on Monday and nobody answers the phone." },
      { text: "The film starts slowly, but the last half hour is worth the ticket." },
    ],
    fill: [
      { text: "She drank a cup of [MASK] with milk and sugar." },
      { text: "Paris is the [MASK] of France." },
      { text: "The [MASK] chased the mouse, but the mouse was [MASK]." },
    ],
    tag: [
      { text: "Marie Curie was born in Warsaw and worked at the University of Paris." },
      { text: "In July, Anna Fischer flies from Berlin to Toronto for Siemens." },
    ],
    answer: [
      { question: "When was the bridge opened?",
        context: "The bridge was designed by a local engineer. Work began in 1928, and the bridge was opened in May 1932, two years later than planned. It carries six lanes of traffic." },
      { question: "Who designed the bridge?",
        context: "The bridge was designed by a local engineer. Work began in 1928, and the bridge was opened in May 1932, two years later than planned. It carries six lanes of traffic." },
    ],
    generate: [{ prompt: "The old lighthouse stood" }, { prompt: "In the morning, the market" }],
    translate: [{ text: "the cat sees a dog" }, { text: "a dog sees the red bird" }, { text: "Two children are playing in the snow." }],
    similarity: [
      { texts: "I want my money back.\nPlease refund my order.\nThe weather is lovely today.\nIt is sunny outside.\nMy parcel has not arrived." },
      { texts: "The doctor examined the patient.\nA physician looked at the sick man.\nThe orchestra played a symphony.\nMusicians gave a concert." },
    ],
    neighbors: [
      { word: "bank", text: "We sat on the bank and watched the river.",
        texts: "The bank raised its interest rates again.\nWillows grow along the bank of the stream.\nShe opened an account at the bank.\nThe boat was pulled up on the shore.\nHe works as a clerk for a large bank." },
      { word: "light", text: "The room was full of light in the morning.",
        texts: "Please turn on the light.\nThis suitcase is very light.\nThe sun shone through the window.\nShe had a light meal before the game.\nA lamp stood in the corner." },
    ],
    attention: [
      { text: "The cat that chased the mice was hungry." },
      { text: "She gave the book to her brother because he asked for it." },
    ],
  },
  ru: {
    classify: [
      { text: "Заказали в восемь утра, гости в полдень, и всё привезли. Вы спасли мой день рождения." },
      { text: "Где моя посылка? Её ждали в понедельник, и никто не берёт трубку." },
    ],
    fill: [{ text: "Она выпила чашку [MASK] с молоком и сахаром." }, { text: "Москва — [MASK] России." }],
    tag: [{ text: "Мария Кюри родилась в Варшаве и работала в Парижском университете." }],
    answer: [
      { question: "Когда открыли мост?",
        context: "Мост спроектировал местный инженер. Работы начались в 1928 году, а открыли мост в мае 1932 года, на два года позже, чем собирались." },
    ],
    generate: [{ prompt: "Старый маяк стоял" }, { prompt: "Утром на рынке" }],
    translate: [{ text: "Двое детей играют в снегу." }],
    similarity: [
      { texts: "Верните мне деньги.\nПрошу возместить стоимость заказа.\nСегодня прекрасная погода.\nНа улице солнечно.\nМоя посылка не пришла." },
    ],
    neighbors: [
      { word: "ключ", text: "Из-под камня бил холодный ключ.",
        texts: "Она потеряла ключ от двери.\nУ дороги был родник с чистой водой.\nКлюч повернулся в замке.\nМы пили воду из ключа." },
    ],
    attention: [{ text: "Кошка, которая гналась за мышами, проголодалась." }],
  },
};

/** Return the examples of a view for a model: objects of the values of fields. */
export function examplesFor(id, model) {
  const reads = model.example_languages;
  const chosen = reads.includes(language()) ? language() : (reads[0] ?? "en");
  return EXAMPLES[chosen][id];
}
